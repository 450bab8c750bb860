"""The compiled loops of Spark's tasks called once, so that no task waits for the compiler."""

import numpy as np

from acktree.producers.collecting.packing import MIN_COMPILED_ENTRIES, fold_entries
from acktree.schemas.clients import make_consumer
from acktree.spark.tasks.reading.columns_in import ColumnsIn, compiled_loops


def load() -> None:
    """Load the compiler's parts and what needs no client: for a process that is going to fork.

    Raises:
        NoColumns: records are read one by one on this machine.
    """
    roots = np.arange(1, MIN_COMPILED_ENTRIES + 1, dtype=np.uint64)
    fold_entries(roots, roots)
    compiled_loops()


def load_batches() -> None:
    """Load what lays out record batches and headers.

    Raises:
        ImportError: aiokafka or what it needs is missing; tuples are written one by one.
    """
    from acktree.spark.tasks.writing import anchor_loop, record_batches

    record_batches.warm_up()
    anchor_loop.warm_up()


def warm_up() -> None:
    """Compile or load all that tasks read and write with; needs no broker.

    Raises:
        NoColumns: records are processed one by one on this machine, so there is nothing to compile.
    """
    load()
    consumer = make_consumer({"bootstrap.servers": "127.0.0.1:9", "log_level": 0, "group.id": "warm-up"})
    columns_in = ColumnsIn(consumer, "warm-up", 0)
    columns_in.take(1, 0.0)
    columns_in.close()
    consumer.close()
    load_batches()
