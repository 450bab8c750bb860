"""Goodput of a bolt that is slower than what arrives, and what a trigger such as a kill leaves behind.

    python benchmarks/overload.py [-b HOST:PORT] [--cases half,backlog,...] [--rate 200] [--seconds 60]

A Spark application, an acker and the bolt's workers, each in its own process. The bolt sleeps in
`execute`, so its capacity is known. What is done is read from the result topic, and the bolt counts its
executions. The worst window is the least done in 20 seconds, once the first record is done.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from acktree.console.demo.children import ChildProcess
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.settings import consumer_settings
from acktree.wire.codec import decode_result_record
from acktree.wire.control_records import Result
from acktree.wire.ids import origins_of
from harness import (
    Cluster,
    Deployment,
    Table,
    arguments,
    cluster,
    flush,
    new_name,
    produce,
    some_of,
    wait_until,
)

LIMIT_S = 900.0
MESSAGE_TIMEOUT_S = 10
WINDOW_S = 20.0
TOPOLOGY = """
name = "{name}"
message_timeout_s = {timeout_s}
[spouts.clicks]
topics = ["{name}.clicks"]
emits = ["{name}.parsed"]
[bolts.pay]
reads = ["{name}.parsed"]
exactly_once = {exactly_once}
"""


@dataclass(frozen=True)
class Case:
    """What arrives, in shares of the bolt's capacity, and what happens to the bolt.

    ``slow`` is the share of its capacity that the bolt has in the second third of the time.
    """

    arriving: float
    backlog_timeouts: float = 0.0
    slow: float = 1.0
    workers: int = 1
    hot: float = 0.0
    is_killed: bool = False
    is_exactly_once: bool = False


CASES = {
    "half": Case(0.5),
    "full": Case(1.0),
    "double": Case(2.0),
    "backlog": Case(0.0, backlog_timeouts=10),
    "slow": Case(0.5, slow=0.1),
    "hot": Case(0.5, workers=4, hot=0.8),
    "killed": Case(2.0, workers=2, is_killed=True),
    "once": Case(2.0, workers=2, is_exactly_once=True),
    "once-killed": Case(2.0, workers=2, is_killed=True, is_exactly_once=True),
}


class Arrivals(threading.Thread):
    """Produces records at a steady rate until it is told to end; ``hot`` of them have the same key."""

    def __init__(self, kafka: Cluster, topic: str, per_s: float, hot: float) -> None:
        super().__init__(name="bench-arrivals", daemon=True)
        self._producer, self._topic, self._per_s, self._hot = kafka.producer(), topic, per_s, hot
        self.is_over = threading.Event()
        self.sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            is_hot = self.sent % 100 < 100 * self._hot
            key = b"hot" if is_hot else b"%d" % self.sent
            produce(self._producer, self._topic, b"click %d" % self.sent, key=key)
            self.sent += 1
        flush(self._producer)

    def run(self) -> None:
        began_s, before = time.monotonic(), self.sent
        while not self.is_over.wait(0.1):
            due = int((time.monotonic() - began_s) * self._per_s)
            self.send(due - (self.sent - before))


class Finished:
    """The records whose trees are done, by their origin, with the time at which this was read."""

    def __init__(self, deployment: Deployment) -> None:
        topic = f"{deployment.name}.spout-0"
        self._consumer: Consumer = make_consumer(
            consumer_settings(deployment.bootstrap, f"{deployment.name}.look", {})
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._origins: set[tuple[int, int]] = set()
        self.times_s: list[float] = []
        self.failed = 0

    def read(self, wait_s: float = 0.1) -> int:
        """Read what is there; return how many records are done."""
        now_s = time.monotonic()
        for message in self._consumer.consume(10_000, wait_s):
            record = decode_result_record(message.value() or b"")
            if isinstance(record, Result):
                self.failed += len(record.failed)
                slots, _, offsets = origins_of(record.acked)
                fresh = set(zip(slots.tolist(), offsets.tolist(), strict=True)) - self._origins
                self._origins |= fresh
                self.times_s += [now_s] * len(fresh)
        return len(self.times_s)

    def follow(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.read()

    def between(self, begin_s: float, end_s: float) -> int:
        return sum(begin_s <= time_s < end_s for time_s in self.times_s)

    def worst_per_s(self, begin_s: float, end_s: float) -> float:
        """Return the least that was done in a window between two times."""
        starts = range(int(max(1.0, end_s - begin_s - WINDOW_S)))
        return min(self.between(begin_s + at, begin_s + at + WINDOW_S) / WINDOW_S for at in starts)

    def close(self) -> None:
        self._consumer.close()


class Run:
    """One case on its own deployment."""

    def __init__(self, kafka: Cluster, deployment: Deployment, case: Case, rate: float) -> None:
        self._deployment, self._case = deployment, case
        self._worker_rate = rate / case.workers
        self._set_rate(1.0)
        self.arrivals = Arrivals(kafka, f"{deployment.name}.clicks", case.arriving * rate, case.hot)
        self.arrivals.send(int(case.backlog_timeouts * MESSAGE_TIMEOUT_S * rate))
        self.workers: list[ChildProcess] = []

    def _set_rate(self, share: float) -> None:
        (self._deployment.folder / "rate").write_text(str(share * self._worker_rate))

    @property
    def executed(self) -> int:
        """Return how many executions the workers have counted."""
        return sum(path.stat().st_size for path in Path(self._deployment.folder).glob("executed-*"))

    def start(self) -> None:
        bolt = ("bolt", "run", "jobs:Paced", "--bolt", "pay")
        self._deployment.start("acker", "run")
        self.workers = [self._deployment.start(*bolt) for _ in range(self._case.workers)]
        self._deployment.start("spark", "run", "jobs:keyed", "--spout", "clicks")
        self.arrivals.start()

    def trigger(self) -> Callable[[], None]:
        """Do to the bolt what the case is about; return what takes it back."""
        self._set_rate(self._case.slow)
        if self._case.is_killed:
            self.workers[0].kill()
            self.workers[0].start()
        return lambda: self._set_rate(1.0)


def measure(kafka: Cluster, name: str, rate: float, seconds: float, table: Table) -> None:
    case = CASES[name]
    topology = TOPOLOGY.format(
        name=new_name(), timeout_s=MESSAGE_TIMEOUT_S, exactly_once=str(case.is_exactly_once).lower()
    )
    with kafka.deployment(topology, {"clicks": 1, "parsed": case.workers}) as deployment:
        run, finished = Run(kafka, deployment, case, rate), Finished(deployment)
        run.start()
        wait_until(lambda: finished.read() > 0, LIMIT_S, "the first record is done")
        begin_s = time.monotonic()
        third_s = seconds / 3
        finished.follow(third_s)
        back = run.trigger()
        finished.follow(third_s)
        back()
        finished.follow(third_s)
        end_s = time.monotonic()
        run.arrivals.is_over.set()
        run.arrivals.join()
        done = finished.between(begin_s, end_s)
        wait_until(lambda: finished.read() == run.arrivals.sent, LIMIT_S, "all records are done")
        drained_s = time.monotonic() - end_s
        capacity = rate * (2 + case.slow) / 3 * (1 / (case.workers * case.hot) if case.hot else 1.0)
        expected = min(capacity, case.arriving * rate) if not case.backlog_timeouts else capacity
        table.row(
            name,
            *(expected, done / seconds, 100 * done / seconds / expected),
            finished.worst_per_s(begin_s, end_s),
            run.executed / run.arrivals.sent,
            finished.failed,
            drained_s,
        )
        finished.close()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", type=some_of([*CASES]), default=tuple(CASES), metavar="NAME,...")
    parser.add_argument("--rate", type=float, default=200.0, help="what the bolt does a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    with cluster(asked) as kafka:
        table = Table(
            f"{asked.rate:g} records a second, timeout {MESSAGE_TIMEOUT_S} s",
            *("expected/s", "done/s", "%", "worst/s", "executions", "failed", "drained s"),
        )
        for name in asked.cases:
            measure(kafka, name, asked.rate, asked.seconds, table)


if __name__ == "__main__":
    main()
