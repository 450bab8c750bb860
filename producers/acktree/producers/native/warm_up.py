"""Calls the compiled loops that fold and produce columns once, so that no worker waits for the compiler.

The machine code is cached on disk: a container image built with this starts without compiling.
"""

import numpy as np

from acktree.producers.kafka.packing import MIN_COMPILED_ENTRIES, fold_entries
from acktree.producers.native.columns_out import ColumnsOut, find_cells
from acktree.schemas.clients import make_producer


def load() -> None:
    """Load the compiler and what needs no client; for a process that is going to fork."""
    roots = np.arange(1, MIN_COMPILED_ENTRIES + 1, dtype=np.uint64)
    fold_entries(roots, roots)


def warm_up() -> None:
    """Compile or load what produces and folds columns; needs no broker.

    Raises:
        NoColumns: records are moved one by one on this machine, so there is nothing to compile.
    """
    load()
    producer = make_producer({"bootstrap.servers": "127.0.0.1:9", "log_level": 0})
    columns = [cells for cells in (find_cells(column, 1) for column in ([b""], None, None)) if cells]
    ColumnsOut(producer).produce("warm-up", columns, [], 0)
    producer.purge()
    producer.flush(0)
