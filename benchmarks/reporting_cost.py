"""What the reports of a worker and an acker cost, for benchmarks/watching.py.

The worker is a real one that stands in its group and reads nothing; the acker's tables hold open roots. Each
report is made and handed to the producer many times over, on the thread of the loop, whose CPU time counts.
"""

import time
from collections.abc import Iterator
from threading import Thread

import numpy as np

from acktree.acker.figures import Figures
from acktree.acker.folding.cut import Positions
from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.folding.partition import Partition
from acktree.core.reports.liveness import Liveness
from acktree.core.reports.stall_reports import RoleReports
from acktree.core.reports.stats import STATS_INTERVAL_S, Report
from acktree.producers import BasicBolt, Emit, Tuple
from acktree.producers.worker.loop import Worker
from acktree.wire.batch_codec import decode_init_batch
from acktree.wire.codec import encode_ack_init
from acktree.wire.control_records import ENTRY, AckInit
from acktree.wire.ids import root_ids
from harness import Cluster, Table, new_name, wait_until

REPORTS = 200
PARTITIONS = (1, 64)
OPEN_ROOTS = (0, 100_000, 2_000_000)
LIMIT_S = 300.0
TOPOLOGY = """
name = "{name}"
ackers = 1
[spouts.s]
topics = ["{name}.in"]
emits = ["{name}.words"]
[bolts.count]
reads = ["{name}.words"]
"""


class Idle(BasicBolt):
    """Is given no tuple."""

    def execute(self, tup: Tuple, emit: Emit) -> None:
        raise AssertionError(tup)


def print_reporting(kafka: Cluster) -> None:
    """Print the CPU time of a report, and its share of a core."""
    table = Table("process", "CPU ms a report", "of a core")

    def row(name: str, cpu_s: float) -> None:
        table.row(name, f"{1000 * cpu_s:.3f}", f"{cpu_s / STATS_INTERVAL_S:.3%}")

    for partitions in PARTITIONS:
        row(f"worker, {partitions} partitions", _worker_s(kafka, partitions))
    for partitions in PARTITIONS:
        for roots in OPEN_ROOTS:
            row(f"acker, {partitions} partitions, {roots:,} open roots", _acker_s(partitions, roots))


def _worker_s(kafka: Cluster, partitions: int) -> float:
    """Return the CPU seconds of one report of a worker that reads ``partitions`` partitions."""
    with kafka.deployment(TOPOLOGY.format(name=new_name()), {"in": partitions}) as deployment:
        worker = Worker(kafka.bootstrap, deployment.name, Idle(), name="count")
        make, costs = worker.reports.make, list[float]()

        def make_often() -> Report:
            if len(worker._inputs.consumer.assignment()) == partitions:
                began_s = time.thread_time()
                for _ in range(REPORTS):
                    worker._sender.send(make())
                costs.append((time.thread_time() - began_s) / REPORTS)
            return make()

        worker.reports.make = make_often  # type: ignore[method-assign]
        thread = Thread(target=worker.run)
        thread.start()
        try:
            wait_until(lambda: len(costs) >= 3, LIMIT_S, "three reports", poll_s=0.1)
        finally:
            worker.stop()
            thread.join()
    return min(costs)


def _acker_s(partitions: int, roots: int) -> float:
    """Return the CPU seconds of one report of an acker whose partitions have ``roots`` open roots."""
    owned = dict(_partitions(partitions, roots))
    figures, reports = Figures(), RoleReports("acker", "acker", "host:1", Liveness())
    count = REPORTS if roots < 1_000_000 else 10
    began_s = time.thread_time()
    for _ in range(count):
        values = {**figures.values(owned, {}), **figures.oldest(owned)}
        reports.of_loop(values).encode()
    return (time.thread_time() - began_s) / count


def _partitions(count: int, roots: int) -> Iterator[tuple[int, Partition]]:
    now_ms = int(time.time() * 1000)
    offsets = np.arange(roots, dtype=np.int64)
    all_roots = root_ids(0, 16, offsets)
    for number in range(count):
        partition = Partition(Positions(0, 0), AgeLimits.of_seconds(30, 300, 21_600), seed=number)
        mine = all_roots[all_roots % np.uint64(count) == number]
        for at, start in enumerate(range(0, len(mine), 1_000)):
            entries = np.ones(len(mine[start : start + 1_000]), ENTRY)
            entries["root"] = mine[start : start + 1_000]
            batch = decode_init_batch([encode_ack_init(AckInit(0, 1, entries))])
            partition.fold_inits(batch, np.array([now_ms + at], np.int64), at + 1, now_ms)
        assert partition.table.pending == len(mine)
        yield number, partition
