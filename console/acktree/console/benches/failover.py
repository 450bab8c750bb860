"""How long the acker reads nothing after a worker was killed: how long the end of `T.ack` stands still.

Two workers of one bolt, tuples at a steady rate, SIGKILL for one of them; with exactly once, while a
transaction of its own holds the last stable offset of a partition of `T.ack`: the worst moment. The result is
the longest time in which such an offset did not move, while the other worker went on acking. Kinds: at least
once; exactly once; exactly once with ``group.instance.id``, where the killed worker is started again at once
under its name, as systemd or Kubernetes would.
"""

import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from confluent_kafka import TopicPartition

from acktree.console.devbroker.owner import die_with_owner
from acktree.schemas.client_settings import consumer_settings, producer_settings
from acktree.schemas.clients import make_consumer, make_producer
from acktree.schemas.header import HEADER, SINGLE, single_headers
from acktree.schemas.ids import EdgeSource, generation_of, root_ids
from acktree.schemas.publish import apply_topology
from acktree.schemas.registry import read_history
from acktree.schemas.topology import Topology

BOLT = "acktree.console.benches.worker_bolts:Pass"
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
        """Return the longest time in which one partition's end stood still, within so many seconds.

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
        """Return whether a last stable offset stands still while records are written behind it."""
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


def measure(bootstrap: str, kind: str) -> Failover:
    """Kill one of two workers under load."""
    exactly_once, is_restarted = KINDS[kind]
    name = f"bench-{uuid.uuid4().hex[:8]}"
    bolt = {"reads": [f"{name}.in"], "exactly_once": exactly_once}
    described = {
        "name": name,
        "ackers": ACKERS,
        "spouts": {"source": {"emits": [f"{name}.in"]}},
        "bolts": {"pass": bolt},
    }
    apply_topology(bootstrap, Topology.model_validate(described), {})
    with ExitStack() as running:
        stopped = threading.Event()
        load = threading.Thread(target=_emit, args=(bootstrap, name, stopped))
        load.start()
        running.callback(load.join)
        running.callback(stopped.set)
        ends = _Ends(bootstrap, f"{name}.ack")
        running.callback(ends.close)

        def start(instance: str) -> subprocess.Popen[bytes]:
            process = _start(bootstrap, name, instance if is_restarted else None)
            running.callback(process.wait)
            running.callback(process.kill)
            return process

        victim, _ = start("one"), start("two")
        time.sleep(WARM_UP_S + WATCHED_S / 4)
        before_s = ends.longest_pause_s(WARM_UP_S)
        since_s = _kill(victim, ends, in_transaction=exactly_once)
        if is_restarted:
            start("one")
        return Failover(before_s, ends.longest_pause_s(WATCHED_S, since_s))


def _kill(victim: subprocess.Popen[bytes], ends: _Ends, *, in_transaction: bool) -> float:
    """Kill a worker, at once or when it has been stopped within a transaction that holds `T.ack`.

    Returns when it stopped working, by the monotonic clock.
    """
    for _ in range(MAX_STOPS):
        victim.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        if not in_transaction or ends.is_held():
            victim.kill()
            victim.wait()
            return stopped_s
        victim.send_signal(signal.SIGCONT)
        time.sleep(random.uniform(0, MAX_STEP_S))  # at all phases of its commits
    raise RuntimeError(f"of {MAX_STOPS} stops none was within a transaction that holds T.ack")


def _start(bootstrap: str, name: str, instance: str | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "acktree.console.main", "bolt", "run", BOLT, "-b", bootstrap]
    command += ["--topology", name, "--bolt", "pass"]
    if instance is not None:
        command += ["-X", f"group.instance.id={instance}"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, preexec_fn=die_with_owner())


def _emit(bootstrap: str, name: str, stopped: threading.Event) -> None:
    """Write tuples at RATE_PER_S, each of a tree of its own."""
    version = read_history(bootstrap, name, {}).latest.version
    producer, edges, emitted = make_producer(producer_settings(bootstrap, {})), EdgeSource(), 0
    begin_s = time.monotonic()
    while not stopped.wait(0.01):
        count = round((time.monotonic() - begin_s) * RATE_PER_S) - emitted
        roots = root_ids(0, generation_of(1, 0), np.arange(emitted, emitted + count))
        packed = single_headers(version, version, roots, edges.many(count)).tobytes()
        for at in range(0, len(packed), SINGLE.itemsize):
            headers: list[tuple[str, str | bytes | None]] = [(HEADER, packed[at : at + SINGLE.itemsize])]
            producer.produce(f"{name}.in", b"x" * 100, headers=headers)
        producer.poll(0)
        emitted += count
    producer.flush()
