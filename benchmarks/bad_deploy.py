"""A bolt that fails everything for some minutes at a steady rate: dead letters, and how long recovery takes.

    python benchmarks/bad_deploy.py [-b HOST:PORT] [--rate 5000] [--bad 120] [--max-attempts 2] [--no-breaker]

Runs an acker, a Spark application and a worker, each in its own process. The bolt is good, then bad,
then good again; records come at the rate until then. Ends when all are done, or after --limit seconds more.
"""

import time
from dataclasses import dataclass

from confluent_kafka import TopicPartition

from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from harness import Cluster, Deployment, Table, arguments, cluster, committed_offset, flush, new_name, produce

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
    """What is in the topics of one topology whose bolt turns bad."""

    def __init__(self, kafka: Cluster, deployment: Deployment) -> None:
        self._deployment, self._source = deployment, f"{deployment.name}.lines"
        self._group, self._producer = deployment.consumer("lines"), kafka.producer(linger_ms=20)
        self._dead_letters = TopicPartition(f"{deployment.name}.dead-letter", 0)
        self._sent = 0
        deployment.start("acker", "run")
        deployment.start("bolt", "run", "jobs:FailWhileBad", "--bolt", "store")
        self._spark = deployment.start("spark", "run", "jobs:values", "--spout", "lines")

    def run(self, rate: float, bad_s: float, limit_s: float) -> Outcome:
        """Send while the bolt is good, then bad; wait until all is done when it is good again."""
        bad = self._deployment.folder / "bad"
        self._send(rate, GOOD_S)
        bad.touch()
        self._send(rate, bad_s)
        before = self._done()
        print(f"at the end of the bad time: {before} of {self._sent} done", flush=True)
        bad.unlink()
        good_s, closed, closed_s, first_s, all_s = time.monotonic(), self._said("closed"), None, None, None
        while (now_s := time.monotonic() - good_s) < limit_s and all_s is None:
            found = self._done()
            closed_s = now_s if closed_s is None and self._said("closed") > closed else closed_s
            first_s = now_s if first_s is None and found > before else first_s
            all_s = now_s if found >= self._sent else None
            time.sleep(0.2)
        _, dead_letters = self._group.get_watermark_offsets(self._dead_letters, timeout=BROKER_TIMEOUT_S)
        counts = self._sent, self._done(), dead_letters, self._said("open")
        return Outcome(*counts, closed_s, first_s, all_s)

    def _done(self) -> int:
        return committed_offset(self._group, self._source)

    def _send(self, rate: float, seconds: float) -> None:
        began_s, before = time.monotonic(), self._sent
        while (now_s := time.monotonic() - began_s) < seconds:
            while self._sent - before < rate * now_s:
                produce(self._producer, self._source, b"record %d" % self._sent)
                self._sent += 1
            self._producer.poll(0.01)
        flush(self._producer)

    def _said(self, state: str) -> int:
        """Return how often the spout has logged that its breaker is open, or closed."""
        return self._spark.log.read_text().count(f"the breaker of spout lines is {state}")


def measure(
    kafka: Cluster, rate: float, bad_s: float, limit_s: float, max_attempts: int, breaker: str
) -> Outcome:
    text = TOPOLOGY.format(name=new_name(), max_attempts=max_attempts, breaker=breaker)
    with kafka.deployment(text, {"lines": 1}) as deployment:
        return BadDeploy(kafka, deployment).run(rate, bad_s, limit_s)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rate", type=float, default=5_000, help="records a second")
    parser.add_argument("--bad", type=float, default=120, help="how many seconds the bolt fails everything")
    parser.add_argument("--max-attempts", type=int, default=2)
    parser.add_argument("--no-breaker", action="store_true")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds to wait for the end")
    asked = parser.parse_args()
    with cluster(asked) as kafka:
        breaker = "" if asked.no_breaker else BREAKER
        outcome = measure(kafka, asked.rate, asked.bad, asked.limit, asked.max_attempts, breaker)
        table = Table(
            "records", "done", "dead letters", "openings", "closed, s", "first done, s", "all done, s"
        )
        times = (outcome.closed_s, outcome.first_done_s, outcome.all_done_s)
        counts = (outcome.done, outcome.dead_letters, outcome.openings)
        table.row(f"{outcome.sent:,}", *counts, *("never" if s is None else s for s in times))


if __name__ == "__main__":
    main()
