"""One acker draining a backlog of acks from a real broker, in acks a second and a CPU second.

Caveats: the broker runs on the same machine; the acker's CPU is that of this process while it drains, its
Kafka client's threads among it; the clock starts at the first record folded, that of the refold when the
partitions are taken over. One root a partition is never acked, so the second acker folds everything again.
"""

import threading
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from acktree.acker.service import Acker
from acktree.schemas.client_settings import Settings, producer_settings
from acktree.schemas.clients import make_producer
from acktree.schemas.codec import encode_ack, encode_ack_init
from acktree.schemas.control_records import ENTRY, Ack, AckInit, EntryArray
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology

INITS_PER_RECORD = 500
TOPOLOGY = """
name = "{name}"
ackers = {ackers}
[spouts.lines]
"""
FLUSH_S = 120.0
DEADLINE_S = 300.0


class Drained(NamedTuple):
    """Acks folded a second, a CPU second, and how many there were; seconds a new owner needs."""

    per_s: float
    per_cpu_s: float
    acks: int
    refold_s: float


def measure_backlog(
    bootstrap: str, acks: int, per_record: int, pending: int, partitions: int, user: Settings
) -> Drained:
    """Write a backlog of ``acks`` acks of ``pending`` roots, and have one acker drain it."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name, ackers=partitions)), user)
    passes = max(1, round(acks / pending))
    _write_backlog(bootstrap, name, passes, per_record, pending, partitions, user)
    per_s, per_cpu_s, _ = _drain(bootstrap, name, pending, user)
    _, _, refold_s = _drain(bootstrap, name, pending, user)
    return Drained(per_s, per_cpu_s, passes * pending, refold_s)


def _drain(bootstrap: str, name: str, pending: int, user: Settings) -> tuple[float, float, float]:
    """Have a new acker fold from the cut; return acks a second, a CPU second, and seconds in all."""
    acker = Acker(bootstrap, name, user=user)
    thread = threading.Thread(target=acker.run)
    thread.start()
    try:
        _wait(lambda: int(acker.figures()["partitions"]) > 0, thread)
        taken_s = time.perf_counter()
        _wait(lambda: int(acker.figures()["folded"]) > 0, thread)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        before = int(acker.figures()["folded"])
        _wait(lambda: int(acker.figures()["acked"]) >= pending, thread)
        end_s, cpu_s = time.perf_counter(), time.process_time() - begin_cpu_s
        folded = int(acker.figures()["folded"]) - before
    finally:
        acker.stop()
        thread.join()
    return folded / (end_s - begin_s), folded / cpu_s, end_s - taken_s


def _wait(condition: Callable[[], bool], thread: threading.Thread) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s or not thread.is_alive():
            raise RuntimeError("the acker did not drain the backlog")
        time.sleep(0.01)


def _write_backlog(
    bootstrap: str, name: str, passes: int, per_record: int, pending: int, partitions: int, user: Settings
) -> None:
    """Write one init a root and ``passes`` acks; only all of them together fold to zero."""
    source = np.random.default_rng(3)
    producer = make_producer(producer_settings(bootstrap, user, linger_ms=20, batch_size=1_000_000))

    def send(topic: str, partition: int, value: bytes) -> None:
        while True:
            try:
                producer.produce(f"{name}.{topic}", value, partition=partition)
                return
            except BufferError:
                producer.poll(0.05)

    for partition in range(partitions):
        count = pending // partitions + (partition < pending % partitions)
        pairs = np.empty(count, ENTRY)
        pairs["root"] = source.integers(1, 2**62 // partitions, count, np.uint64) * partitions + partition
        total = np.zeros(count, np.uint64)
        for _ in range(passes):
            pairs["value"] = source.integers(1, 2**64 - 1, count, np.uint64)
            total ^= pairs["value"]
            for chunk in _chunks(pairs[source.permutation(count)], per_record):
                send("ack", partition, encode_ack(Ack("bolt", 1, chunk)))
        pairs["value"] = total
        # One root that is never acked holds the cut, so that the next acker folds all of it again.
        held = np.array([(2**63 // partitions * partitions + partition, 1)], ENTRY)
        send("ack-init", partition, encode_ack_init(AckInit(0, 1, held)))
        for chunk in _chunks(pairs, INITS_PER_RECORD):
            send("ack-init", partition, encode_ack_init(AckInit(0, 1, chunk)))
    assert producer.flush(FLUSH_S) == 0


def _chunks(pairs: EntryArray, size: int) -> list[EntryArray]:
    return [pairs[start : start + size] for start in range(0, len(pairs), size)]
