"""Forks Spark's Python workers with all loaded that they need: ``spark.python.daemon.module`` names it.

Spark's own daemon loads nothing before it forks, so each worker imports, and loads machine code, for a second
or two of its own.

Invariant: no client of Kafka is there at the fork, nor a thread that a fork breaks: none is started here, and
those that numpy and Arrow start come to terms with a fork.
"""

import gc
from contextlib import suppress

import pyspark.worker  # noqa: F401 (what workers import first)
from pyspark.daemon import manager

from acktree.producers.librdkafka import NoColumns
from acktree.producers.warm_up import load
from acktree.spark import source, stage  # noqa: F401 (what tasks import)

if __name__ == "__main__":
    with suppress(NoColumns):  # each worker says so once it has no columns
        load()
    with suppress(ImportError, RuntimeError):  # and of batches
        from acktree.producers import record_batches
        from acktree.spark import anchor_loop, batch_transaction  # noqa: F401

        record_batches.warm_up()
        anchor_loop.warm_up()
    gc.freeze()  # a worker collects garbage after each task; what is here is none
    manager()
