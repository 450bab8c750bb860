"""The compiled loops that fold and write columns, called once, so that no worker waits for the compiler.

The machine code is kept on disk: an image that is built with this starts without a compiler's work.
"""

import numpy as np
from confluent_kafka import Producer

from acktree.producers.kafka.packing import MANY_ENTRIES, fold_entries
from acktree.producers.native.columns_out import ColumnsOut, find_cells


def load() -> None:
    """Load the compiler's parts and what needs no client: for a process that is going to fork."""
    roots = np.arange(1, MANY_ENTRIES + 1, dtype=np.uint64)
    fold_entries(roots, roots)


def warm_up() -> None:
    """Compile or load what produces and folds columns; needs no broker.

    Raises:
        NoColumns: records go one by one on this machine, there is nothing to compile.
    """
    load()
    producer = Producer({"bootstrap.servers": "127.0.0.1:9", "log_level": 0})
    columns = [cells for cells in (find_cells(column, 1) for column in ([b""], None, None)) if cells]
    ColumnsOut(producer).produce("warm-up", columns, [], 0)
    producer.purge()
    producer.flush(0)
