"""How long commands take that watch a large topology, and what a worker pays for its reports.

    python benchmarks/watching.py [-b HOST:PORT] [--acks 10000000] [--per-record 10] [--hours 1]
    python benchmarks/watching.py --reporting

The first writes a topology of 64 source partitions, 20 bolts and 64 acker partitions as if it had run for an
hour: control records and results of many roots (four acks each), the last 20 of each source partition open,
the tuples of the last minutes, commits of all groups, and the reports of 100 processes. Then it runs each
command as a user would. Its topics are deleted at the end.

The second measures the CPU time of the reports of a worker and an acker, with one partition and with 64.
"""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from acktree.console.devbroker.owner import die_with_owner
from clock import Spent, TreeClock, ended_children
from harness import ACKTREE, Cluster, Table, arguments, cluster, new_name
from reporting_cost import print_reporting
from watched_topology import PARTITIONS, PENDING, WatchedTopology

GOAL_S = 5.0


class Ran(NamedTuple):
    """One command: what it was for, what it took, and what it said."""

    name: str
    spent: Spent
    said: str


def run(name: str, *arguments: str) -> Ran:
    """Run a command to its end; exit code 1 says that something is stuck."""
    before = ended_children()
    ended = subprocess.run([ACKTREE, *arguments], capture_output=True, text=True, check=False)
    spent = ended_children().since(before)
    assert ended.returncode in (0, 1), ended.stderr
    return Ran(name, spent, _summary(json.loads(ended.stdout)))


def _summary(found: dict[str, Any]) -> str:
    if "searched_records" in found:
        tuples = sum(len(each["tuples"]) for each in found["emissions"])
        return f"{found['state']}, {found['searched_records']:,} records, {tuples} tuples {found['notes']}"
    if "reports" in found:
        pending = found["totals"]["pending"]
        return (
            f"{pending} pending, {found['reports']:,} reports, {len(found['stuck'])} stuck {found['notes']}"
        )
    return f"{len(found['pending'])} pending {found['notes']}"


def run_page(bootstrap: str, topology: str, watch_s: float) -> Iterator[Ran]:
    """Serve the status page; measure its first status, one with rates, and what follows."""
    options = ("--topology", topology, "-b", bootstrap, "--port", "0", "--format", "json")
    began_s = time.perf_counter()
    page = subprocess.Popen(
        [ACKTREE, "ui", *options], stdout=subprocess.PIPE, text=True, preexec_fn=die_with_owner()
    )
    try:
        assert page.stdout is not None
        with TreeClock(page.pid) as clock:
            begin = Spent(began_s, 0.0)
            url = json.loads(page.stdout.readline())["url"]
            for name, key in (("ui: its first status", "totals"), ("ui: with rates of processes", "reports")):
                while not (body := _get(url + "status.json")).get(key):
                    time.sleep(0.05)
                yield Ran(name, clock().since(begin), _summary(body))
            begin, oldest_s, slowest_s = clock(), 0.0, 0.0
            while (now_s := time.perf_counter()) < begin.wall_s + watch_s:
                body = _get(url + "status.json")
                slowest_s = max(slowest_s, time.perf_counter() - now_s)
                oldest_s = max(oldest_s, body["looked_s_ago"])
                time.sleep(0.2)
            said = f"figures at most {oldest_s:.1f} s old, in {watch_s:.0f} s {body['notes']}"
            yield Ran("ui: its slowest request", Spent(slowest_s, clock().since(begin).cpu_s), said)
    finally:
        page.terminate()
        page.wait(30)


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def watch(topology: WatchedTopology, watch_s: float) -> Iterator[Ran]:
    """Run everything that watches, one after the other."""
    where = ("--topology", topology.name, "-b", topology.bootstrap, "--format", "json")
    source = topology.source
    done, pending = str(topology.count - PENDING - 1), str(topology.count - 1)
    yield run("describe", "describe", *where)
    yield run("pending list", "pending", "list", *where)
    yield run("trace, done", "trace", *where, source, "5", done)
    yield run("trace, pending", "trace", *where, source, "5", pending)
    yield run("trace, done long ago", "trace", *where, source, "5", "3")
    yield from run_page(topology.bootstrap, topology.name, watch_s)


def measure(kafka: Cluster, asked: Any) -> None:
    name = asked.keep or new_name()
    topology = WatchedTopology(kafka, name, asked.acks, asked.per_record, asked.hours)
    try:
        if not topology.exists():
            began_s = time.monotonic()
            topology.write()
            written = f"{topology.report_count:,} reports, {topology.tuple_count:,} tuples"
            took_s = time.monotonic() - began_s
            print(f"{asked.acks:,} acks, {written}, {PARTITIONS} partitions, written in {took_s:.0f} s")
        else:
            topology.write_reports(120)
        table = Table("command", "wall s", "CPU s", "")
        for ran in watch(topology, asked.watch):
            late = "  MORE THAN 5 s" if ran.spent.wall_s > GOAL_S else ""
            table.row(ran.name, *ran.spent, ran.said + late)
    finally:
        if asked.keep is None:
            kafka.delete_topics(name)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--acks", type=int, default=10_000_000)
    parser.add_argument("--per-record", type=int, default=10)
    parser.add_argument("--hours", type=float, default=1.0, help="how long the topology has run")
    parser.add_argument("--watch", type=float, default=20.0, help="for how many seconds the page is watched")
    parser.add_argument("--keep", metavar="NAME", help="write the topology NAME only once, and keep it")
    parser.add_argument("--reporting", action="store_true", help="measure what reports cost")
    asked = parser.parse_args()
    with cluster(asked) as kafka:
        if asked.reporting:
            print_reporting(kafka)
        else:
            measure(kafka, asked)


if __name__ == "__main__":
    main()
