"""The acker: memory a root, its fold alone beside a plain dict, and one acker draining a backlog from Kafka.

    python benchmarks/acker_rates.py [-b HOST:PORT] [--partitions 1,2,4,64] [--acks 10000000]

Of the backlog: the broker runs on the same machine; CPU is that of this process while the acker drains, its
Kafka client's threads included; the clock starts at the first record folded, that of the refold when the
partitions are taken over. One root a partition is never acked, so the second acker folds everything again.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from acker_fold import measure_fold, measure_memory
from acktree.acker.service import Acker
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import ENTRY, Ack, AckInit, EntryArray
from clock import this_process
from harness import Cluster, Deployment, Table, arguments, cluster, flush, new_name, produce, wait_until

PENDING = 200_000
INITS_PER_RECORD = 500
PER_RECORD = (500, 10)
TOPOLOGY = """
name = "{name}"
ackers = {ackers}
[spouts.lines]
"""
DEADLINE_S = 300.0


class Drained(NamedTuple):
    """Acks folded a second and a CPU second, and the seconds since the partitions were taken over."""

    per_s: float
    per_cpu_s: float
    took_s: float


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000, help="roots pending while folding alone")
    parser.add_argument("--acks", type=int, default=10_000_000, help="acks in the backlog of large records")
    parser.add_argument("--memory-roots", type=int, default=4_000_000, help="roots for the memory figure")
    parser.add_argument("--partitions", default="1", help="numbers of ackers, such as 1,2,4,64")
    asked = parser.parse_args()
    with cluster(asked) as kafka:
        memory = measure_memory(asked.memory_roots)
        Table("memory", "bytes a root", "longest fold of 100,000 inits, ms").row(
            f"{asked.memory_roots:,} pending", memory.bytes_per_root, memory.longest_ms
        )
        fold = measure_fold(asked.pending)
        alone = Table(f"fold alone, {asked.pending:,} pending", "M events/CPU s", "longest call, ms")
        alone.row("the acker's table", fold.table_per_s / 1e6, fold.longest_ms)
        alone.row("a plain dict", fold.dict_per_s / 1e6, "")
        alone.row("ratio", fold.table_per_s / fold.dict_per_s, "")
        drains = Table("through Kafka", "acks", "M/s", "M/CPU s", "again by a new owner, s")
        for partitions in map(int, asked.partitions.split(",")):
            for per_record, acks in zip(PER_RECORD, (asked.acks, asked.acks // 5), strict=True):
                passes = max(1, round(acks / PENDING))
                first, again = measure_backlog(kafka, passes, per_record, partitions)
                drains.row(
                    f"{partitions} partition(s), {per_record} a record",
                    passes * PENDING,
                    first.per_s / 1e6,
                    first.per_cpu_s / 1e6,
                    again.took_s,
                )


def measure_backlog(kafka: Cluster, passes: int, per_record: int, partitions: int) -> tuple[Drained, Drained]:
    """Write ``passes`` acks of each root; have one acker drain them, then another."""
    with kafka.deployment(TOPOLOGY.format(name=new_name(), ackers=partitions)) as deployment:
        _write_backlog(kafka, deployment.name, passes, per_record, partitions)
        return _drain(deployment), _drain(deployment)


def _drain(deployment: Deployment) -> Drained:
    """Have a new acker fold from the cut."""
    acker = Acker(deployment.bootstrap, deployment.name, user={})
    thread = threading.Thread(target=acker.run)
    thread.start()

    def wait(is_there: Callable[[], bool]) -> None:
        wait_until(lambda: is_there() or not thread.is_alive(), DEADLINE_S, "the backlog is drained", 0.01)
        assert thread.is_alive(), "the acker has ended"

    try:
        wait(lambda: int(acker.figures()["partitions"]) > 0)
        taken = this_process()
        wait(lambda: int(acker.figures()["folded"]) > 0)
        begin, before = this_process(), int(acker.figures()["folded"])
        wait(lambda: int(acker.figures()["acked"]) >= PENDING)
        end, folded = this_process(), int(acker.figures()["folded"]) - before
    finally:
        acker.stop()
        thread.join()
    spent = end.since(begin)
    return Drained(folded / spent.wall_s, folded / spent.cpu_s, end.since(taken).wall_s)


def _write_backlog(kafka: Cluster, name: str, passes: int, per_record: int, partitions: int) -> None:
    """Write one init a root and ``passes`` acks; only all of them together fold to zero."""
    source = np.random.default_rng(3)
    producer = kafka.producer(linger_ms=20, batch_size=1_000_000)

    def send(topic: str, partition: int, value: bytes) -> None:
        produce(producer, f"{name}.{topic}", value, partition=partition)

    for partition in range(partitions):
        count = PENDING // partitions + (partition < PENDING % partitions)
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
    flush(producer)


def _chunks(pairs: EntryArray, size: int) -> list[EntryArray]:
    return [pairs[start : start + size] for start in range(0, len(pairs), size)]


if __name__ == "__main__":
    main()
