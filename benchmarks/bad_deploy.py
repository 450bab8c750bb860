"""A bolt that fails everything for some minutes at a steady rate: dead letters, and how long recovery takes.

    python benchmarks/bad_deploy.py [-b HOST:PORT] [--rate 5000] [--bad 120] [--max-attempts 2] [--no-breaker]

Runs an acker, a Spark application and a worker, all as processes of their own. The bolt is good, then bad,
then good again; records come at the rate until then. Ends when all are done, or after --limit seconds more.
"""

import argparse
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.demo.children import ChildProcess
from acktree.console.devbroker.broker import LocalBroker
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology

GOOD_S = 10.0
LIMIT_S = 300.0
TOPOLOGY = """
name = "{name}"
message_timeout_s = 30
[spouts.lines]
topics = ["{name}.lines"]
emits = ["{name}.words"]
max_attempts = {max_attempts}
retry_initial_s = 0.5
retry_max_s = 5
{breaker}
[bolts.store]
reads = ["{name}.words"]
"""
BREAKER = """
max_consecutive_failures = 500
max_failure_ratio = 0.5
failure_window_s = 20
"""
JOBS = """
from pathlib import Path
from acktree.producers import BatchBolt

def same(lines):
    return lines.select("value", "anchors")

class Store(BatchBolt):
    name = "store"

    def execute(self, tuples, collector):
        if Path("bad").exists():
            for tup in tuples:
                collector.fail(tup, "KeyError: 'city'")
"""


@dataclass(frozen=True)
class Outcome:
    """What came of a run; times in seconds since the bolt was good again, None if not within the limit."""

    sent: int
    done: int
    dead_letters: int
    openings: int
    closed_s: float | None
    first_done_s: float | None
    all_done_s: float | None


class BadDeploy:
    """The processes of one topology in a folder, and what is in its topics."""

    def __init__(self, stack: ExitStack, bootstrap: str, name: str, max_attempts: int, breaker: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (self.folder / "jobs.py").write_text(JOBS)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._admin.create_topics([NewTopic(f"{name}.lines", 1)])[f"{name}.lines"].result()
        text = TOPOLOGY.format(name=name, max_attempts=max_attempts, breaker=breaker)
        apply_topology(bootstrap, parse_topology(text), {})
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{name}.lines"})
        stack.callback(self._consumer.close)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
        self.sent = 0
        common = ["--topology", name, "-b", bootstrap]
        commands = {
            "acker": ["acker", "run", *common],
            "bolt": ["bolt", "run", "jobs:Store", *common],
            "spark": ["spark", "run", "jobs:same", "--spout", "lines", *common],
        }
        self.children = {
            child: ChildProcess(
                child, command, self.folder, self.folder / f"{child}.log", {"PYTHONUNBUFFERED": "1"}
            )
            for child, command in commands.items()
        }
        for child in self.children.values():
            stack.callback(child.stop)
            child.start()
        for child in self.children.values():
            child.wait_ready(lambda: None)

    def done(self) -> int:
        """Return the committed offset of the source."""
        (committed,) = self._consumer.committed([TopicPartition(f"{self.name}.lines", 0)], timeout=10)
        return max(0, committed.offset)

    def dead_letters(self) -> int:
        return int(
            self._consumer.get_watermark_offsets(TopicPartition(f"{self.name}.dead-letter", 0), timeout=10)[1]
        )

    def send(self, rate: float, seconds: float) -> None:
        """Send records at a rate."""
        began_s, before = time.monotonic(), self.sent
        while (now_s := time.monotonic() - began_s) < seconds:
            while self.sent - before < rate * now_s:
                self._producer.produce(f"{self.name}.lines", b"record %d" % self.sent)
                self.sent += 1
            self._producer.poll(0.01)
        self._producer.flush()

    def said(self, text: str) -> int:
        """Return how often the spout has logged that its breaker is open, or closed."""
        return (self.folder / "spark.log").read_text().count(f"the breaker of spout lines is {text}")

    def run(self, rate: float, bad_s: float, limit_s: float) -> Outcome:
        """Send while the bolt is good, then bad; wait until all is done when it is good again."""
        self.send(rate, GOOD_S)
        (self.folder / "bad").touch()
        self.send(rate, bad_s)
        letters, before = self.dead_letters(), self.done()
        print(f"at the end of the bad time: {before} of {self.sent} done, {letters} dead letters", flush=True)
        (self.folder / "bad").unlink()
        good_s, closed, closed_s, first_s, all_s = time.monotonic(), self.said("closed"), None, None, None
        while (now_s := time.monotonic() - good_s) < limit_s and all_s is None:
            found = self.done()
            closed_s = now_s if closed_s is None and self.said("closed") > closed else closed_s
            first_s = now_s if first_s is None and found > before else first_s
            all_s = now_s if found >= self.sent else None
            time.sleep(0.2)
        counts = self.sent, self.done(), self.dead_letters(), self.said("open")
        return Outcome(*counts, closed_s, first_s, all_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-b", "--bootstrap-server", help="Default: a broker of its own.")
    parser.add_argument("--rate", type=float, default=5_000, help="records a second")
    parser.add_argument("--bad", type=float, default=120, help="how many seconds the bolt fails everything")
    parser.add_argument("--max-attempts", type=int, default=2)
    parser.add_argument("--no-breaker", action="store_true")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds to wait for the end")
    asked = parser.parse_args()
    with ExitStack() as stack:
        bootstrap = asked.bootstrap_server or stack.enter_context(LocalBroker()).bootstrap
        breaker = "" if asked.no_breaker else BREAKER
        run = BadDeploy(stack, bootstrap, f"bad-{time.time_ns()}", asked.max_attempts, breaker)
        print(run.run(asked.rate, asked.bad, asked.limit))


if __name__ == "__main__":
    main()
