"""The page in Chromium: what a visitor sees while figures, broker, server and login come and go.

Chromium runs on virtual time, so minutes of refreshes take a moment; each test's script acts as the visitor
and writes what it finds into the page, which Chromium prints.
"""

import dataclasses
import html
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import prerequisites
from acktree.console.page.routes.status_page import StatusPages
from acktree.console.page.serving import rendering
from acktree.console.page.serving.frame import Frame, PageSettings
from acktree.console.page.serving.watcher import PageState
from acktree.console.view.documents import Status
from acktree.console.view.status import make_status
from acktree.core.reports.stats import Report
from acktree.wire.ids import generation_of, root_id
from console.test_page import published, reported, seen
from deadlines import stretched

PROBE = '<script src="/probe.js" defer></script>'
NO_ANSWER = "no Kafka broker answers"


class Answers:
    """What the server answers, in turn; the last stays."""

    def __init__(self, *answers: PageState | Response) -> None:
        self._answers = list(answers)
        self.now = self._answers[0]

    def take(self) -> PageState | Response:
        self.now = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return self.now

    def state(self) -> PageState:
        assert isinstance(self.now, PageState)
        return self.now


def a_status(**changes: object) -> Status:
    roots = (root_id(0, generation_of(1, 0), offset) for offset in (6, 7))
    ages = {f"root_age_s.{root:016x}": 1.0 for root in roots}
    acker = Report("acker", "acker", "a:1", 1_700_000_000_000, {"partitions": 1, **ages})
    return dataclasses.replace(make_status(seen(published()), reported(acker)), **changes)


def state(status: Status, error: str | None = None, since_s: float = 1.0) -> PageState:
    return PageState(status, published(), error, since_s)


@contextmanager
def serving(answers: Answers, script: str) -> Iterator[str]:
    """Serve the status page with a visitor's script."""
    frame = Frame(PageSettings("127.0.0.1:1", "t", {}))
    pages = StatusPages(frame, answers)

    async def status(request: Request) -> Response:
        if isinstance(instead := answers.take(), Response):
            return instead
        response = await pages.status(request)
        return HTMLResponse(bytes(response.body).replace(b"</head>", PROBE.encode() + b"</head>"))

    async def probe(request: Request) -> Response:
        return Response(SCRIPT.replace("VISITOR", script), media_type="text/javascript")

    async def login(request: Request) -> Response:
        return frame.render("login.html", wrong=None, wanted="/")

    app = Starlette(
        routes=[
            Route("/", status),
            Route("/probe.js", probe),
            Route("/login", login),
            Mount("/static", StaticFiles(directory=rendering.HERE / "static")),
        ]
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


SCRIPT = """
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const $ = (selector) => document.querySelector(selector);
const visible = (node) => node && node.getClientRects().length ? node.textContent : "";
addEventListener("load", async () => {
  if (top !== self) return;
  const said = document.createElement("pre");
  said.id = "said";
  try { said.textContent = JSON.stringify(await (async () => { VISITOR })()); }
  catch (error) { said.textContent = JSON.stringify(String(error)); }
  document.body.append(said);
});
"""
INDICATOR = """const said = [];
await wait(1000);
for (let look = 0; look < LOOKS; look += 1) {
  said.push({name: $("#live-state").className, text: $("#live-state").textContent, color:
    getComputedStyle($("#live-state"), "::before").backgroundColor,
    banners: [...document.querySelectorAll(".banner")].map(visible).join(" ")});
  await wait(2000);
}
return said;"""


def visit(url: str, folder: Path, *options: str) -> object:
    """Return what the visitor's script says."""
    command = [
        prerequisites.program("chromium", "chromium-browser", "google-chrome"),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *(f"--user-data-dir={folder}", "--virtual-time-budget=25000", "--dump-dom", *options, url),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=stretched(120), check=True).stdout
    said = re.search('<pre id="said">(.*?)</pre>', dom, re.DOTALL)
    assert said, dom
    return json.loads(html.unescape(said[1]))


def test_the_indicator_is_red_and_says_since_when_and_why_the_figures_are_old(tmp_path):
    fresh = state(a_status())
    answers = {
        "": fresh,
        NO_ANSWER: state(a_status(), NO_ANSWER, 61.0),
        "the broker is slow to answer": state(a_status(), None, 61.0),
        "answers with an error, 502. The data below is from ": Response("", 502),
        "Your login has expired. The data below is from ": RedirectResponse("/login", 303),
    }
    script = INDICATOR.replace("LOOKS", str(2 * len(answers) - 1))
    in_turn = [each for answer in answers.values() for each in (answer, fresh)]
    with serving(Answers(*in_turn), script) as url:
        looks = visit(url, tmp_path)
    assert [look["name"] for look in looks] == ["live", "live", *["away", "live"] * 3, "away"]
    assert {look["text"] for look in looks if look["name"] == "live"} == {"live"}
    for reason, look in zip(list(answers)[1:], looks[2::2], strict=True):
        assert reason in look["banners"]
        assert re.fullmatch(r"stale since (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \S+", look["text"])
        assert look["color"] == "rgb(181, 44, 35)"


def test_a_refresh_keeps_focus_scroll_selection_and_all_under_a_pressed_pointer(tmp_path):
    found = a_status()
    looks = [state(dataclasses.replace(found, oldest=found.oldest[number:])) for number in (0, 1, 2)]
    script = """
        const rows = () => document.querySelectorAll("#oldest tbody tr").length, said = {};
        const last = $("#oldest tbody tr:last-child a"), card = $("#bolts .card"), bolt = $("#bolt-count");
        said.rows = [rows()];
        last.focus({preventScroll: true}); card.scrollLeft = 77; scrollTo(0, 222);
        await wait(3000); said.rows.push(rows());
        said.focus = document.activeElement === last && last.isConnected;
        said.scrolls = [card.scrollLeft, scrollY];
        said.same = bolt === $("#bolt-count") && bolt.isConnected;
        dispatchEvent(new PointerEvent("pointerdown"));
        await wait(2000); said.rows.push(rows());
        document.getSelection().selectAllChildren(last); dispatchEvent(new PointerEvent("pointerup"));
        await wait(2000); said.rows.push(rows());
        said.selected = [String(document.getSelection()) === last.textContent, $("#live-state").className];
        document.getSelection().removeAllRanges();
        await wait(2000); said.rows.push(rows());
        said.state = $("#live-state").className;
        return said;"""
    with serving(Answers(*looks), script) as url:
        said = visit(url, tmp_path, "--window-size=500,400")
    assert said == {
        "rows": [3, 2, 2, 2, 1],
        "focus": True,
        "scrolls": [77, 222],
        "same": True,
        "selected": [True, "paused"],
        "state": "live",
    }


def test_the_indicator_dates_figures_that_are_not_from_today(tmp_path):
    with serving(Answers(state(a_status(), NO_ANSWER, 200_000.0)), INDICATOR.replace("LOOKS", "1")) as url:
        (look,) = visit(url, tmp_path)
    assert re.fullmatch(r"stale since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+", look["text"])
