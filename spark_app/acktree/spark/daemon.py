"""Forks Spark's Python workers with their modules loaded already; named by ``spark.python.daemon.module``.

Spark's own daemon loads nothing before it forks, so each worker imports, and loads machine code, for more
than a CPU second of its own (``python benchmarks/native.py daemon --tasks 8``).

Invariant: at the fork there is no Kafka client, nor a thread that a fork breaks: none is started here, and
those that numpy and Arrow start support a fork.
"""

import gc
from contextlib import suppress

import pyspark.worker  # noqa: F401 (what workers import first)
from pyspark.daemon import manager

from acktree.producers.native.librdkafka import NoColumns
from acktree.spark import source, stage  # noqa: F401 (what tasks import)
from acktree.spark.warm_up import load, load_batches

if __name__ == "__main__":
    with suppress(NoColumns):  # each worker says so once it has no columns
        load()
    with suppress(ImportError, RuntimeError):  # and of batches
        from acktree.spark.tasks.writing import batch_transaction  # noqa: F401

        load_batches()
    gc.freeze()  # a worker collects garbage after each task; nothing loaded here is garbage
    manager()
