"""The compiled loops for columns called once, so that no worker and no task of Spark waits for the compiler.

The machine code is kept on disk: an image that is built with this starts without a compiler's work.
"""

import numpy as np
from confluent_kafka import Consumer, Producer

from acktree.producers.columns_in import ColumnsIn, compiled_loops
from acktree.producers.columns_out import ColumnsOut, find_cells
from acktree.producers.packing import MANY_ENTRIES, fold_entries


def load() -> None:
    """Load the compiler's parts and what needs no client: for a process that is going to fork.

    Raises:
        NoColumns: as for ``warm_up``.
    """
    roots = np.arange(1, MANY_ENTRIES + 1, dtype=np.uint64)
    fold_entries(roots, roots)
    compiled_loops()


def warm_up() -> None:
    """Compile or load what reads, produces and folds columns; needs no broker.

    Raises:
        NoColumns: records go one by one on this machine, there is nothing to compile.
    """
    load()
    nowhere = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0}
    consumer = Consumer({**nowhere, "group.id": "warm-up"})
    columns_in = ColumnsIn(consumer, "warm-up", 0)
    columns_in.take(1, 0.0)
    columns_in.close()
    consumer.close()
    producer = Producer(nowhere)
    columns = [cells for cells in (find_cells(column, 1) for column in ([b""], None, None)) if cells]
    ColumnsOut(producer).produce("warm-up", columns, [], 0)
    producer.purge()
    producer.flush(0)
