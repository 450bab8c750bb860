"""Forks Spark's Python workers with their modules already loaded; named by ``spark.python.daemon.module``.

Spark's own daemon loads nothing before it forks, so each worker imports, and loads machine code, for more
than a CPU second (``python benchmarks/native.py daemon --tasks 8``).

Invariant: at the fork there is no Kafka client, nor a thread that a fork breaks: none is started here, and
the threads that numpy and Arrow start support a fork.
"""

import gc
import sys
from contextlib import suppress

import pyspark.daemon
import pyspark.worker

from acktree.spark import source, stage  # noqa: F401 (what tasks import)
from acktree.spark.native.switch import NativeOff
from acktree.spark.warm_up import load, load_batches, load_columns


def print_unless_closed(*values: object, **more: object) -> None:
    """Print what Spark's daemon reports, but no stack where the JVM has closed the socket of a worker first.

    It does so with each worker whose output it no longer needs. Whether a task had all of its input does not
    depend on it: see ``runtime/whole_input.py``.
    """
    if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
        print(*values, **more)  # type: ignore[call-overload]


pyspark.daemon.print = print_unless_closed  # type: ignore[attr-defined]

if __name__ == "__main__":
    load()
    with suppress(NativeOff):  # each worker says so once it has no columns
        load_columns()
    with suppress(NativeOff):  # and of batches
        load_batches()
    gc.freeze()  # a worker collects garbage after each task; nothing loaded here is garbage
    pyspark.daemon.manager()
