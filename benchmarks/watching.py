"""How long commands take that watch a large topology, and what a worker pays for its reports.

    python benchmarks/watching.py [-b HOST:PORT] [--acks 10000000] [--per-record 10] [--hours 1]
    python benchmarks/watching.py --reporting

The first writes a topology of 64 source partitions, 20 bolts and 64 acker partitions as if it had run for an
hour: control records and results of many roots (four acks each), the last 20 of each source partition open,
the tuples of the last minutes, commits of all groups, and the reports of 100 processes. Then it runs each
command as a user would. Its topics are deleted at the end.

The second measures the CPU time of the reports of a worker and an acker, with one partition and with 64.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import NamedTuple

from acktree.console.devbroker.broker import LocalBroker

sys.path.insert(0, str(Path(__file__).parent))
from reporting_cost import measure_reporting
from watched_topology import PARTITIONS, PENDING, WatchedTopology

ACKTREE = str(Path(sys.executable).with_name("acktree"))
GOAL_S = 5.0


class Ran(NamedTuple):
    """One command: what it was for, its wall and CPU seconds, and what it said."""

    name: str
    wall_s: float
    cpu_s: float
    said: str


def run(name: str, *arguments: str) -> Ran:
    """Run a command to its end; exit code 1 says that something is stuck."""
    began_s, before = time.monotonic(), getrusage(RUSAGE_CHILDREN)
    ended = subprocess.run([ACKTREE, *arguments], capture_output=True, text=True, check=False)
    wall_s, after = time.monotonic() - began_s, getrusage(RUSAGE_CHILDREN)
    assert ended.returncode in (0, 1), ended.stderr
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(name, wall_s, cpu_s, _summary(json.loads(ended.stdout)))


def _summary(found: dict) -> str:
    if "searched_records" in found:
        tuples = sum(len(each["tuples"]) for each in found["emissions"])
        return f"{found['state']}, {found['searched_records']:,} records, {tuples} tuples {found['notes']}"
    if "reports" in found:
        pending = found["totals"]["pending"]
        return (
            f"{pending} pending, {found['reports']:,} reports, {len(found['stuck'])} stuck {found['notes']}"
        )
    return f"{len(found['pending'])} pending {found['notes']}"


def run_page(bootstrap: str, topology: str, watch_s: float) -> list[Ran]:
    """Serve the status page; measure its first status, one with rates, and what follows."""
    began_s = time.monotonic()
    options = ("--topology", topology, "-b", bootstrap, "--port", "0", "--format", "json")
    page = subprocess.Popen([ACKTREE, "ui", *options], stdout=subprocess.PIPE, text=True)
    ran, cpu_before_s = [], 0.0
    try:
        assert page.stdout is not None
        url = json.loads(page.stdout.readline())["url"]
        for name, is_there in (
            ("ui: its first status", lambda body: "totals" in body),
            ("ui: with rates of processes", lambda body: body.get("reports", 0) > 0),
        ):
            while not is_there(body := _get(url + "status.json")):
                time.sleep(0.05)
            wall_s, cpu_before_s = time.monotonic() - began_s, _cpu_s(page.pid)
            ran.append(Ran(name, wall_s, cpu_before_s, _summary(body)))
        oldest_s, slowest_s, until_s = 0.0, 0.0, time.monotonic() + watch_s
        while time.monotonic() < until_s:
            asked_s = time.monotonic()
            body = _get(url + "status.json")
            slowest_s = max(slowest_s, time.monotonic() - asked_s)
            oldest_s = max(oldest_s, body["looked_s_ago"])
            time.sleep(0.2)
        cpu_s = _cpu_s(page.pid) - cpu_before_s
        said = f"figures at most {oldest_s:.1f} s old, in {watch_s:.0f} s {body['notes']}"
        ran.append(Ran("ui: its slowest request", slowest_s, cpu_s, said))
    finally:
        page.terminate()
        page.wait(30)
    return ran


def _get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def watch(bootstrap: str, topology: WatchedTopology, watch_s: float) -> list[Ran]:
    """Run everything that watches, one after the other."""
    name = topology.name
    where = ("--topology", name, "-b", bootstrap, "--format", "json")
    source = topology.source
    done, pending = str(topology.count - PENDING - 1), str(topology.count - 1)
    ran = [
        run("describe", "describe", *where),
        run("pending list", "pending", "list", *where),
        run("trace, done", "trace", *where, source, "5", done),
        run("trace, pending", "trace", *where, source, "5", pending),
        run("trace, done long ago", "trace", *where, source, "5", "3"),
    ]
    return ran + run_page(bootstrap, name, watch_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-b", "--bootstrap-server", dest="bootstrap")
    parser.add_argument("--acks", type=int, default=10_000_000)
    parser.add_argument("--per-record", type=int, default=10)
    parser.add_argument("--hours", type=float, default=1.0, help="how long the topology has run")
    parser.add_argument("--watch", type=float, default=20.0, help="for how many seconds the page is watched")
    parser.add_argument("--keep", metavar="NAME", help="write the topology NAME only once, and keep it")
    parser.add_argument("--no-cut", action="store_true", help="as if no acker had ever committed")
    parser.add_argument("--reporting", action="store_true", help="measure what reports cost")
    options = parser.parse_args()
    with ExitStack() as stack:
        bootstrap = options.bootstrap or stack.enter_context(LocalBroker()).bootstrap
        if options.reporting:
            measure_reporting(bootstrap)
            return
        name = options.keep or f"bench-watching-{time.time_ns() // 1_000_000}"
        topology = WatchedTopology(bootstrap, name, options.acks, options.per_record, options.hours)
        if options.keep is None:
            stack.callback(topology.delete)
        if not topology.exists():
            began_s = time.monotonic()
            topology.write()
            print(
                f"{options.acks:,} acks, {topology.report_count:,} reports, {topology.tuple_count:,} tuples"
            )
            print(
                f"of {PARTITIONS} partitions were written in {time.monotonic() - began_s:.0f} s", flush=True
            )
        else:
            topology.write_reports(120)
        if options.no_cut:
            topology.drop_cut()
        print(f"{'command':30} {'wall s':>8} {'CPU s':>8}")
        for each in watch(bootstrap, topology, options.watch):
            late = "  MORE THAN 5 s" if each.wall_s > GOAL_S else ""
            print(f"{each.name:30} {each.wall_s:8.2f} {each.cpu_s:8.2f}  {each.said}{late}", flush=True)


if __name__ == "__main__":
    main()
