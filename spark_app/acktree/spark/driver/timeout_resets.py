"""Sends resets: while a batch takes long, the stage's driver asks the acker for more time for its roots.

Invariant: nothing is sent after the batch, nor for a read task whose batch commit record says that it is
written: its trees are then the ackers' and bolts' to finish. A lost reset costs at most a replay, so an error
here is logged and ends nothing.

The roots of the batch come from Spark and, for a bolt, are read once more from Kafka; only a slow batch does
so.
"""

import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from acktree.core import world
from acktree.core.kafka.outages import log_retry
from acktree.spark.shared.batch_commits import ReadTaskName
from acktree.spark.tasks.producers import task_producer
from acktree.spark.tasks.reading.read_task import ReadTask, task_anchors
from acktree.spark.tasks.writing.write_task import StagePlan

log = logging.getLogger("acktree.spark")


class Resets:
    """Sends the resets of one batch's roots; anchors are kept, 18 bytes each, once they are needed."""

    def __init__(self, batch: DataFrame, plan: StagePlan, is_written: Callable[[ReadTask], bool]) -> None:
        self._batch, self._plan, self._is_written = batch, plan, is_written
        self._tasks: list[ReadTask] | None = None
        self._anchors: dict[ReadTaskName, bytes] = {}

    def send(self, ended: world.Event) -> None:
        """Restart the timeout of every root whose init or ack is not sent yet, until the batch ends."""
        if self._tasks is None:
            self._tasks = read_tasks_of(self._batch)
        acker_updates = self._plan.acker_updates(task_producer(self._plan.bootstrap, self._plan.user))
        for task in self._tasks:
            if not self._is_written(task):
                anchors = self._anchors.get(task.name) or self._read(task, ended)
                if ended.is_set():
                    return
                acker_updates.reset(anchors)

    def _read(self, task: ReadTask, ended: world.Event) -> bytes:
        parts: list[bytes] = []
        for part in task_anchors(task):
            if ended.is_set():
                return b""
            parts.append(part)
        return self._anchors.setdefault(task.name, b"".join(parts))


def read_tasks_of(batch: DataFrame) -> list[ReadTask]:
    """Return what the tasks of a batch given to ``foreachBatch`` read."""
    rdd: Any = batch._jdf.queryExecution().toRdd()
    while rdd.getClass().getSimpleName() != "DataSourceRDD":
        rdd = rdd.dependencies().head().rdd()
    pickled = [partition.inputPartition().get().pickedPartition() for partition in rdd.partitions()]
    return [pickle.loads(bytes(task)) for task in pickled]


@contextmanager
def resetting(interval_s: float, send: Callable[[world.Event], None]) -> Iterator[None]:
    """Call ``send`` every ``interval_s`` seconds, in a thread, until the block ends; 0 is never.

    ``send`` is given what is set when the block ends: the block waits for it.
    """
    if not interval_s:
        yield
        return
    ended = world.event()

    def run() -> None:
        while not ended.wait(interval_s):
            try:
                send(ended)
            except Exception as error:
                log_retry(log, "trees may time out: %s", error, action="reset_failed")

    thread = world.start_thread(run, "acktree-resets")
    try:
        yield
    finally:
        ended.set()
        thread.join()
