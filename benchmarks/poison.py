"""What poison costs where a bolt rejects it, and where it fails it plainly: how far the frontier lags behind.

    python benchmarks/poison.py [-b HOST:PORT] [--seconds 45] [--rate 200] [--poison 0.01]

Runs an acker, a worker in Python and a Spark application as processes of their own, once for each kind of
failure. The lag is what is written and not committed by the spout's group, in records and as the age of the
oldest one.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.devbroker.broker import LocalBroker

ACKTREE = Path(sys.executable).with_name("acktree")
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
JOBS = """
from acktree.producers import BasicBolt, Bolt

def parse(clicks):
    return clicks.select("value", "anchors")

class Plain(Bolt):
    retry = True

    def execute(self, tup, collector):
        if tup.value.startswith(b"poison"):
            collector.fail(tup, "poison", retry=self.retry)
        else:
            collector.ack(tup)

class Rejects(Plain):
    retry = False
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

    def __init__(self, stack: ExitStack, bootstrap: str, name: str) -> None:
        self.stack, self.bootstrap, self.name = stack, bootstrap, name
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self.group = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{name}.clicks"})
        stack.callback(self.group.close)
        self.sent_s: list[float] = []

    def set_up(self, bolt: str) -> None:
        (self.folder / "jobs.py").write_text(JOBS)
        (self.folder / "topology.toml").write_text(TOPOLOGY.format(name=self.name))
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(f"{self.name}.clicks", 1)])[f"{self.name}.clicks"].result()
        apply = [str(ACKTREE), "topology", "apply", "topology.toml", "-b", self.bootstrap]
        subprocess.run(apply, cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        self.start("acker", "run")
        self.start("bolt", "run", f"jobs:{bolt}", "--bolt", "count")
        self.start("spark", "run", "jobs:parse", "--spout", "clicks")
        self.send(0, is_poison=False)  # the first record of a start costs seconds
        self.producer.flush()
        deadline_s = time.monotonic() + START_S
        while self.lag()[0]:
            assert time.monotonic() < deadline_s, "the first record was never committed"
            time.sleep(SAMPLE_S)

    def start(self, *arguments: str) -> None:
        """Start a process and wait until it says that it is ready; it is ended with the run."""
        log = self.folder / f"{arguments[0]}.log"
        with log.open("wb") as file:
            command = [str(ACKTREE), *arguments, "-b", self.bootstrap, "--topology", self.name]
            process = subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        deadline_s = time.monotonic() + START_S
        while b"ready" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.2)

    def send(self, number: int, is_poison: bool) -> None:
        value = b"%s %d" % (b"poison" if is_poison else b"click", number)
        self.producer.produce(f"{self.name}.clicks", value)
        self.producer.poll(0)
        self.sent_s.append(time.monotonic())

    def lag(self) -> tuple[int, float]:
        """Return how many records are written and not committed, and the age of the oldest of them."""
        (place,) = self.group.committed([TopicPartition(f"{self.name}.clicks", 0)], timeout=10)
        frontier = max(place.offset, 0)
        left = len(self.sent_s) - frontier
        return left, time.monotonic() - self.sent_s[frontier] if left else 0.0

    def measure(self, rate: float, seconds: float, poison: float) -> Lag:
        """Write records at a steady rate; then wait until the frontier is at the end, or SETTLE_S."""
        every, lag, began_s = round(1 / poison), Lag(), time.monotonic()
        while (now_s := time.monotonic() - began_s) < seconds:
            while len(self.sent_s) < now_s * rate:
                self.send(len(self.sent_s), len(self.sent_s) % every == every // 2)
            lag.samples.append(self.lag())
            time.sleep(SAMPLE_S)
        self.producer.flush()
        ended_s = time.monotonic()
        while time.monotonic() < ended_s + SETTLE_S:
            if not self.lag()[0]:
                lag.settled_s = time.monotonic() - ended_s
                break
            time.sleep(SAMPLE_S)
        return lag


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-b", "--bootstrap-server")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--poison", type=float, default=0.01)
    options = parser.parse_args()
    print(f"{options.rate:g} records/s for {options.seconds:g} s, {options.poison:.1%} poison, 5 attempts")
    print("a failure        lag, records: most  at the end   age, s: most  at the end   all done, s later")
    with ExitStack() as broker:
        bootstrap = options.bootstrap_server or broker.enter_context(LocalBroker()).bootstrap
        for bolt, name in (("Plain", "plain"), ("Rejects", "retry=False")):
            with ExitStack() as stack:
                run = Run(stack, bootstrap, f"poison{bolt.lower()}{int(time.time())}")
                run.set_up(bolt)
                lag = run.measure(options.rate, options.seconds, options.poison)
            (most, oldest_s), (left, age_s) = lag.largest, lag.samples[-1]
            settled = f"over {SETTLE_S:g}" if lag.settled_s is None else f"{lag.settled_s:.1f}"
            print(f"{name:14} {most:19} {left:11} {oldest_s:14.1f} {age_s:11.1f} {settled:>19}", flush=True)


if __name__ == "__main__":
    main()
