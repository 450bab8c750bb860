"""How long the acker reads nothing after a worker was killed: how long the end of `T.ack` does not move.

    python benchmarks/failover.py [-b HOST:PORT] [--rounds 3]

Two workers of one bolt, tuples at a steady rate, SIGKILL for one of them; with exactly once, while its own
open transaction holds the last stable offset of a partition of `T.ack`: the worst moment. The result is the
longest time in which such an offset did not move, while the other worker kept acking. Kinds: at least
once; exactly once; exactly once with ``group.instance.id``, where the killed worker is restarted immediately
under its name, as systemd or Kubernetes would. Half a minute for each kind and round.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

from confluent_kafka import TopicPartition

from acktree.console.demo.children import ChildProcess
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.settings import consumer_settings
from harness import Cluster, Deployment, Table, arguments, cluster, flush, new_name

RATE_PER_S = 2_000
ACKERS = 2
WARM_UP_S = 5.0
WATCHED_S = 20.0
"""Longer than a session and a transaction time out together, with the settings measured here."""
HELD_S = 0.4
"""Longer than a transaction of the other worker takes."""
MAX_STEP_S, MAX_STOPS = 0.2, 200
KINDS = {
    "at-least-once": (False, False),
    "exactly-once": (True, False),
    "exactly-once, restarted by name": (True, True),
}
TOPOLOGY = """
name = "{name}"
ackers = {ackers}
[spouts.source]
emits = ["{name}.in"]
[bolts.ack]
reads = ["{name}.in"]
exactly_once = {exactly_once}
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="kills of each kind, in turn")
    asked = parser.parse_args()
    with cluster(asked) as kafka:
        table = Table("T.ack stood still at most", "before the kill, s", "after it, s")
        for _ in range(asked.rounds):
            for kind in KINDS:
                table.row(kind, *measure(kafka, kind))


class Failover(NamedTuple):
    """What one kill cost: seconds without news on a partition of `T.ack`, before it and after it."""

    before_s: float
    after_s: float


class _Ends:
    """Watches the last stable offsets of `T.ack`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = consumer_settings(bootstrap, "bench-failover", {})
        self._consumer = make_consumer(settings)
        self._all = make_consumer({**settings, "isolation.level": "read_uncommitted"})
        self._places = [TopicPartition(topic, partition) for partition in range(ACKERS)]

    def longest_pause_s(self, seconds: float, since_s: float | None = None) -> float:
        """Return the longest time in which one partition's end did not move, within ``seconds``.

        Counted from ``since_s`` by the monotonic clock, or from now.
        """
        begin_s = time.monotonic()
        longest_s, until_s = 0.0, begin_s + seconds
        moved = {place.partition: (end, since_s or begin_s) for place, (end, _) in self._known()}
        while (now_s := time.monotonic()) < until_s:
            for place in self._places:
                _, end = self._consumer.get_watermark_offsets(place, timeout=5)
                known, moved_s = moved[place.partition]
                longest_s = max(longest_s, now_s - moved_s)
                if end != known:
                    moved[place.partition] = (end, now_s)
            time.sleep(0.02)
        return longest_s

    def _known(self) -> Iterable[tuple[TopicPartition, tuple[int, int]]]:
        return zip(self._places, self._bounds(), strict=True)

    def is_held(self) -> bool:
        """Return whether a last stable offset does not move while records are written behind it."""
        before = self._bounds()
        time.sleep(HELD_S)
        return any(
            stable == stable_before and end > end_before
            for (stable_before, end_before), (stable, end) in zip(before, self._bounds(), strict=True)
        )

    def _bounds(self) -> list[tuple[int, int]]:
        """Return the last stable offset and the end of each partition."""
        stable = [self._consumer.get_watermark_offsets(place, timeout=5)[1] for place in self._places]
        ends = [self._all.get_watermark_offsets(place, timeout=5)[1] for place in self._places]
        return list(zip(stable, ends, strict=True))

    def close(self) -> None:
        self._consumer.close()
        self._all.close()


def measure(kafka: Cluster, kind: str) -> Failover:
    """Kill one of two workers under load."""
    exactly_once, is_restarted = KINDS[kind]
    text = TOPOLOGY.format(name=new_name(), ackers=ACKERS, exactly_once=str(exactly_once).lower())
    with kafka.deployment(text) as deployment, ExitStack() as running:
        stopped = threading.Event()
        load = threading.Thread(target=_emit, args=(kafka, deployment, stopped))
        load.start()
        running.callback(load.join)
        running.callback(stopped.set)
        ends = _Ends(kafka.bootstrap, f"{deployment.name}.ack")
        running.callback(ends.close)

        def worker(instance: str) -> ChildProcess:
            named = ["-X", f"group.instance.id={instance}"] if is_restarted else []
            return deployment.child("bolt", "run", "jobs:Ack", "--bolt", "ack", *named)

        victim, other = worker("one"), worker("two")
        victim.start()
        other.start()
        time.sleep(WARM_UP_S + WATCHED_S / 4)
        before_s = ends.longest_pause_s(WARM_UP_S)
        since_s = _kill(victim, ends, in_transaction=exactly_once)
        if is_restarted:
            worker("one").start()
        after_s = ends.longest_pause_s(WATCHED_S, since_s)
        other.check_alive()
        other.kill()
        return Failover(before_s, after_s)


def _kill(victim: ChildProcess, ends: _Ends, *, in_transaction: bool) -> float:
    """Kill a worker, immediately or when it has been stopped within a transaction that holds `T.ack`.

    Returns when it stopped working, by the monotonic clock.
    """
    for _ in range(MAX_STOPS):
        os.kill(victim.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        if not in_transaction or ends.is_held():
            victim.kill()
            return stopped_s
        os.kill(victim.pid, signal.SIGCONT)
        time.sleep(random.uniform(0, MAX_STEP_S))  # at all phases of its commits
    raise RuntimeError(f"of {MAX_STOPS} stops none was within a transaction that holds T.ack")


def _emit(kafka: Cluster, deployment: Deployment, stopped: threading.Event) -> None:
    """Write tuples at RATE_PER_S, each in its own tree."""
    producer, headers_of, emitted = kafka.producer(), deployment.headers(), 0
    begin_s = time.monotonic()
    while not stopped.wait(0.01):
        count = round((time.monotonic() - begin_s) * RATE_PER_S) - emitted
        for headers in headers_of(emitted, count):
            producer.produce(f"{deployment.name}.in", b"x" * 100, headers=headers)
        producer.poll(0)
        emitted += count
    flush(producer)


if __name__ == "__main__":
    main()
