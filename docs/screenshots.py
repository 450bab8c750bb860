"""Make the pictures of docs/operate.md, of a simulated topology, with Chromium: python docs/screenshots.py

The topology runs in virtual time (acktree.testing), an hour in about a minute; the pages are the real ones.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from small_png import small_png
from starlette.requests import Request
from starlette.routing import Match

from acktree.console import columns
from acktree.console.page.app import StatusPage
from acktree.console.page.serving import rendering
from acktree.console.page.serving.frame import Frame, PageSettings
from acktree.console.page.serving.history import History, figures_of
from acktree.console.page.serving.watcher import Moved, PageState, edge_offsets, edge_rates
from acktree.console.view.cluster import Cluster, GroupStatus
from acktree.console.view.report_log import read_reports
from acktree.console.view.reports import Reports
from acktree.console.view.snapshot import read_snapshot
from acktree.console.view.status import make_status
from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt
from acktree.testing import TopologyTester
from acktree.testing.parts import BOOTSTRAP

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from console_queries import look

PICTURES = Path(__file__).parent / "images"
MAX_BYTES = 150_000
LOOK_EVERY_S = 20.0
TOPOLOGY = parse_topology("""
name = "orders"
ackers = 2
message_timeout_s = 30
[spouts.orders]
topics = ["orders"]
emits = ["checked"]
max_attempts = 2
retry_max_s = 1
[bolts.geocode]
reads = ["checked"]
emits = ["placed"]
[bolts.invoice]
reads = ["placed"]
[bolts.archive]
reads = ["placed"]
""")
REASONS = ("no city of the name Castrop", "house number 12b is not in the register", "postal code 0000")


class Geocode(BasicBolt):
    """Fails for some orders, and hangs on one."""

    def execute(self, tup: Any, emit: Any) -> None:
        if tup.value.startswith(b"bad"):
            raise ValueError(REASONS[int(tup.value[4:]) % len(REASONS)])
        if tup.value == b"hang":
            world.event().wait()
        world.sleep(0.004)
        emit(tup.value)


class Write(BasicBolt):
    """Takes a while for each order."""

    def execute(self, tup: Any, emit: Any) -> None:
        world.sleep(0.012)


class Operator:
    """Looks at the topology as a status page does: it is the watcher of the pages."""

    def __init__(self, tester: TopologyTester) -> None:
        self._tester = tester
        self._reports = Reports()
        self._history, self._moved = History(), list[Moved]()
        self.fixed = PageState(None, None, None, 0.0)

    def state(self) -> PageState:
        return self.fixed

    def run(self, seconds: float, send: Callable[[int], None] = lambda _number: None) -> None:
        """Let the topology run, with so many numbered turns of input, and look again and again."""
        for number in range(round(seconds / LOOK_EVERY_S)):
            send(number)
            self._tester.run_for(LOOK_EVERY_S)
            self.fixed = look(self._tester, self._look)

    def _look(self, cluster: Cluster) -> PageState:
        began_ms = world.wall_ms()
        snapshot = read_snapshot(cluster)
        read_reports(cluster, self._reports, 3600.0)
        snapshot.groups = {  # which the simulated broker does not describe
            name: GroupStatus("STABLE", ("a member",) * (2 if name.endswith("geocode") else 1))
            for name in snapshot.groups
        }
        self._moved = [*self._moved[-2:], Moved(began_ms, snapshot.time_ms, edge_offsets(snapshot))]
        status = make_status(snapshot, self._reports, edge_rates(self._moved, self._moved[-1]))
        self._history.add(figures_of(status), world.monotonic_s())
        now_s = snapshot.time_ms / 1000
        columns.time = SimpleNamespace(  # type: ignore[attr-defined]
            strftime=time.strftime, localtime=lambda at=None: time.localtime(now_s if at is None else at)
        )
        return PageState(status, snapshot.topology, None, 1.0, self._history.lines())


class Pages:
    """The pages of the topology as files, with what they need beside them."""

    def __init__(self, operator: Operator, tester: TopologyTester, folder: Path) -> None:
        self._folder = folder
        read = partial(look, tester)

        async def find(_frame: Frame, query: Callable[[Cluster], Any]) -> Any:
            return read(query)

        Frame.read = find  # type: ignore[method-assign, assignment]
        made = StatusPage(PageSettings(BOOTSTRAP, TOPOLOGY.name, {}, None, True))
        made.topologies[0].watcher = operator  # type: ignore[assignment]
        self._routes = made.topologies[0].routes()
        shutil.copytree(rendering.HERE / "static", folder / "static")

    def save(self, name: str, path: str) -> str:
        """Write a page to NAME.html; return its text."""
        where, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": where,
            "root_path": "",
            "headers": [],
        }
        scope["query_string"] = query.encode()
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                answer = found["endpoint"](Request({**scope, **found}))
                try:
                    answer.send(None)
                except StopIteration as done:
                    text = bytes(done.value.body).decode()
                    (self._folder / f"{name}.html").write_text(text)
                    return text
        raise LookupError(path)


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, *_values: object) -> None:
        return


def take(folder: Path, pictures: dict[str, tuple[str, int, int, str]]) -> None:
    """Write PNGs: by name a page, its width and height, and `1` for light or `0` for dark."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    for name, (page, width, height, scheme) in pictures.items():
        file = PICTURES / f"{name}.png"
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=1500"),
            *(f"--blink-settings=preferredColorScheme={scheme}", f"--window-size={width},{height}"),
            *(f"--screenshot={file}", f"http://127.0.0.1:{server.server_port}/{page}.html"),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        file.write_bytes(small_png(file.read_bytes()))
        size = file.stat().st_size
        print(f"{file.name}: {size:,} bytes" + (" TOO LARGE" if size > MAX_BYTES else ""))
    server.shutdown()


PHONE = """<!doctype html><style>body{margin:0;display:flex;gap:14px;background:#8a93a0;padding:14px}
iframe{width:390px;height:760px;border:0;border-radius:14px;background:#fff}</style>
<iframe src="stuck.html"></iframe><iframe src="stuck.html#bolts"></iframe><iframe src="trace.html"></iframe>
"""


def send_orders(tester: TopologyTester, number: int) -> None:
    """Send a turn of orders: more and more, then fewer; some of them bad."""
    for order in range(30 + 40 * (number % 60 > 20) + number % 7):
        tester.send("orders", f"order {order}")
    if number % 15 == 3:
        tester.send("orders", f"bad {number // 15}")


def main() -> None:
    """Run the topology, save its pages and take the pictures."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    bolts = {"geocode": Geocode, "invoice": Write, "archive": Write}
    stages = {"orders": lambda row: [row.value]}
    with (
        tempfile.TemporaryDirectory() as name,
        TopologyTester(TOPOLOGY, stages=stages, bolts=bolts, partitions=3, workers={"geocode": 2}) as tester,
    ):
        folder = Path(name)
        operator = Operator(tester)
        pages = Pages(operator, tester, folder)
        operator.run(3600, partial(send_orders, tester))
        pages.save("well", "/")
        tester.send("orders", "hang")
        operator.run(420, partial(send_orders, tester))
        pages.save("stuck", "/")
        oldest = operator.fixed.status.oldest[0] if operator.fixed.status else None
        assert oldest is not None
        place = f"topic={oldest.topic}&partition={oldest.partition}&offset={oldest.offset}"
        pages.save("trace", f"/trace?{place}")
        text = pages.save("dead-letters", "/dead-letters")
        if found := re.search('href="(/dead-letters/[0-9/]+)"', text):
            pages.save("dead-letter", found[1])
        (folder / "phone.html").write_text(PHONE)
        take(
            folder,
            {
                "status": ("well", 1240, 1180, "1"),
                "status-stuck": ("stuck", 1240, 900, "1"),
                "status-dark": ("well", 1240, 700, "0"),
                "status-phone": ("phone", 1226, 788, "1"),
                "trace": ("trace", 1240, 760, "1"),
                "dead-letters": ("dead-letters", 1240, 560, "1"),
            },
        )
        if len(sys.argv) > 1:
            shutil.copytree(folder, sys.argv[1], ignore=shutil.ignore_patterns("profile"))
        os._exit(0)  # the order that hangs would not let the topology stop


if __name__ == "__main__":
    main()
