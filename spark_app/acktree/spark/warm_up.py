"""Calls the compiled loops of Spark's tasks once, so that no task waits for the compiler."""

import numpy as np

from acktree.core.kafka.clients import make_consumer
from acktree.producers.collecting.arithmetic.packing import MIN_COMPILED_ENTRIES, fold_entries
from acktree.spark.native.columns_in import ColumnsIn, compiled_loops
from acktree.spark.native.switch import NativeOff, native_part
from acktree.spark.tasks.writing.transactions import BATCHES


def load() -> None:
    """Load the compiler's parts and what needs no client: for a process that is going to fork."""
    roots = np.arange(1, MIN_COMPILED_ENTRIES + 1, dtype=np.uint64)
    fold_entries(roots, roots)


def load_columns() -> None:
    """Load what reads columns. Raises NativeOff: records are read one by one."""
    compiled_loops()


def load_batches() -> None:
    """Load what lays out record batches. Raises NativeOff: records are written one by one."""
    native_part(BATCHES)
    native_part("acktree.spark.native.record_batches").warm_up()


def warm_up() -> list[str]:
    """Compile or load all that tasks read and write with; return why some of it is not used on this machine.

    Needs no broker.
    """
    load()
    reasons = []
    for part in (_take_columns, load_batches):
        try:
            part()
        except NativeOff as reason:
            reasons.append(str(reason))
    return reasons


def _take_columns() -> None:
    consumer = make_consumer({"bootstrap.servers": "127.0.0.1:9", "log_level": 0, "group.id": "warm-up"})
    try:
        columns_in = ColumnsIn(consumer, "warm-up", 0)
        columns_in.take(1, 0.0)
        columns_in.close()
    finally:
        consumer.close()
