"""Chooses which Python process of an executor writes.

Spark reuses idle Python processes first in, first out, whatever they did before. So two of them take turns at
reading and writing, and each in turn fences the transactional producer that the other one keeps for the same
read task: a new producer a batch. Spark never mixes processes of different environment variables. Writers
have an additional variable, the number of tasks of the batch: otherwise those of a large batch would take
turns at the small ones that follow it. Queries of one session with as many tasks do share them, and take
turns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from pyspark import SparkContext

WRITERS = "ACKTREE_WRITERS"

# The environment belongs to the context, and each query of a session writes from its own thread.
_one_at_a_time = Lock()


@contextmanager
def writers(context: SparkContext, tasks: int) -> Iterator[None]:
    """On the driver, around the making of a function that writes in ``tasks`` tasks."""
    with _one_at_a_time:
        context.environment[WRITERS] = str(tasks)
        try:
            yield
        finally:
            del context.environment[WRITERS]
