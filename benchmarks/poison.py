"""What poison costs where a bolt rejects it, and where it fails it plainly: how far the frontier lags behind.

    python benchmarks/poison.py [-b HOST:PORT] [--seconds 45] [--rate 200] [--poison 0.01]

Runs an acker, a worker in Python and a Spark application, each in its own process, once for each kind of
failure. The lag is what is written and not committed by the spout's group, in records and as the age of the
oldest one.
"""

import time
from dataclasses import dataclass, field

from harness import (
    Cluster,
    Deployment,
    Table,
    arguments,
    cluster,
    committed_offset,
    flush,
    new_name,
    produce,
    wait_until,
)

START_S = 150.0
SETTLE_S = 45.0
"""How long the frontier is watched once nothing more is written: attempts are used up meanwhile."""
SAMPLE_S = 0.25
TOPOLOGY = """
name = "{name}"
[spouts.clicks]
topics = ["{name}.clicks"]
emits = ["{name}.parsed"]
max_attempts = 5
[bolts.count]
reads = ["{name}.parsed"]
"""


@dataclass
class Lag:
    """Samples of (records, seconds), while records are written and at their end."""

    samples: list[tuple[int, float]] = field(default_factory=list)
    settled_s: float | None = None

    @property
    def largest(self) -> tuple[int, float]:
        return max(records for records, _ in self.samples), max(age_s for _, age_s in self.samples)


class Run:
    """One topology with its processes, and how far its spout is."""

    def __init__(self, kafka: Cluster, deployment: Deployment, bolt: str) -> None:
        self._source = f"{deployment.name}.clicks"
        self._producer, self._group = kafka.producer(), deployment.consumer("clicks")
        self._sent_s: list[float] = []
        deployment.start("acker", "run")
        deployment.start("bolt", "run", f"jobs:{bolt}", "--bolt", "count")
        deployment.start("spark", "run", "jobs:values", "--spout", "clicks")
        self._send(is_poison=False)  # the first record of a start costs seconds
        flush(self._producer)
        wait_until(lambda: not self._lag()[0], START_S, "the first record is committed", SAMPLE_S)

    def _send(self, is_poison: bool) -> None:
        value = b"%s %d" % (b"poison" if is_poison else b"click", len(self._sent_s))
        produce(self._producer, self._source, value)
        self._producer.poll(0)
        self._sent_s.append(time.monotonic())

    def _lag(self) -> tuple[int, float]:
        """Return how many records are written and not committed, and the age of the oldest of them."""
        frontier = committed_offset(self._group, self._source)
        left = len(self._sent_s) - frontier
        return left, time.monotonic() - self._sent_s[frontier] if left else 0.0

    def measure(self, rate: float, seconds: float, poison: float) -> Lag:
        """Write records at a steady rate; then wait until the frontier is at the end, or SETTLE_S."""
        every, lag, began_s = round(1 / poison), Lag(), time.monotonic()
        while (now_s := time.monotonic() - began_s) < seconds:
            while len(self._sent_s) < now_s * rate:
                self._send(len(self._sent_s) % every == every // 2)
            lag.samples.append(self._lag())
            time.sleep(SAMPLE_S)
        flush(self._producer)
        ended_s = time.monotonic()
        while time.monotonic() < ended_s + SETTLE_S and lag.settled_s is None:
            if not self._lag()[0]:
                lag.settled_s = time.monotonic() - ended_s
            time.sleep(SAMPLE_S)
        return lag


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--poison", type=float, default=0.01)
    asked = parser.parse_args()
    with cluster(asked) as kafka:
        print(f"{asked.rate:g} records/s for {asked.seconds:g} s, {asked.poison:.1%} poison, 5 attempts")
        columns = "most, records", "at the end", "most, s", "at the end, s", "all done, s later"
        table = Table("lag of the frontier", *columns)
        for bolt, name in (("FailPoison", "plain failures"), ("RejectPoison", "retry=False")):
            with kafka.deployment(TOPOLOGY.format(name=new_name()), {"clicks": 1}) as deployment:
                run = Run(kafka, deployment, bolt)
                lag = run.measure(asked.rate, asked.seconds, asked.poison)
            (most, oldest_s), (left, age_s) = lag.largest, lag.samples[-1]
            settled = f"over {SETTLE_S:g}" if lag.settled_s is None else lag.settled_s
            table.row(name, most, left, oldest_s, age_s, settled)


if __name__ == "__main__":
    main()
