"""Transforms that kill a process of their job once, at a chosen point, as the environment says."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from deadlines import stretched

FATAL = b"fatal"
DEADLINE_S = stretched(240)
ARROW_ROWS = 1_000
LONG = 300
SCHEMA = "value binary, anchors binary"


class Crash(NamedTuple):
    """Who is killed (driver, executor, task, "task and what it reads"), when, and where that is noted."""

    who: str
    point: str
    flag: str
    bootstrap: str
    topology: str
    driver: int

    @classmethod
    def chosen(cls) -> "Crash":
        """Return what the environment of this driver says."""
        texts = (os.environ[f"CRASH_{name.upper()}"] for name in cls._fields[:-1])
        return cls(*texts, int(os.environ.get("CRASH_DRIVER", os.getpgid(0))))


def narrow(rows: DataFrame) -> dict[str, DataFrame]:
    return {_output(): dying(rows)}


def doubled(rows: DataFrame) -> dict[str, DataFrame]:
    """Two branches, so the plan is not narrow: one writes while the other is about to die."""
    return {_output(): rows.select("value", "anchors").union(dying(rows))}


def shuffled(rows: DataFrame) -> dict[str, DataFrame]:
    """One task reads a shuffle and dies; its rows are too long to wait in buffers on their way out."""
    read = rows.select("value", "anchors").repartition(1)
    return {_output(): dying(read).select(f.rpad("value", LONG, b" ").alias("value"), "anchors")}


def _output() -> str:
    return f"{os.environ['CRASH_TOPOLOGY']}.a"


def dying(rows: DataFrame) -> DataFrame:
    """Pass all rows, but kill a process once, at the last record of the big partition."""
    rows.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ARROW_ROWS)
    return rows.select("value", "anchors").mapInArrow(partial(_die_once, crash=Crash.chosen()), SCHEMA)


def _die_once(batches: Iterator[pa.RecordBatch], crash: Crash) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if FATAL in batch.column("value").to_pylist() and not Path(crash.flag).exists():
            _await(crash)
            Path(crash.flag).touch()
            if crash.who == "driver":
                os.killpg(crash.driver, signal.SIGKILL)
            if crash.who == "executor":
                os.kill(_executor(), signal.SIGKILL)
            if crash.who == "task and what it reads":
                _lose_shuffles()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def _lose_shuffles() -> None:
    """Remove what tasks wrote for other tasks, as if the disk was lost."""
    for place in os.environ["SPARK_LOCAL_DIRS"].split(","):
        for file in Path(place).glob("*/shuffle_*"):
            file.unlink()


def _executor() -> int:
    """Return the process of this task's executor: the JVM above the daemon that forks Python workers."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    pid = int(daemon.rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return pid


def _await(crash: Crash) -> None:
    settings = {"bootstrap.servers": crash.bootstrap, "group.id": f"{crash.topology}.in.stage"}
    consumer = Consumer({**settings, "isolation.level": "read_uncommitted"})
    deadline_s = time.monotonic() + DEADLINE_S
    while not _POINTS[crash.point](consumer, crash.topology):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    consumer.close()


def _is_written(consumer: Consumer, name: str) -> bool:
    ends = [consumer.get_watermark_offsets(TopicPartition(f"{name}.a", p))[1] for p in (0, 1)]
    return sum(ends) > 0


def _other_task_is_committed(consumer: Consumer, name: str) -> bool:
    (place,) = consumer.committed([TopicPartition(f"{name}.source", 1)], 10)
    return place.offset > 0


def _other_task_is_committed_and_some_is_written(consumer: Consumer, name: str) -> bool:
    """A row of another task and the markers of its transaction do not count as written."""
    (place,) = consumer.committed([TopicPartition(f"{name}.source", 1)], 10)
    partitions = [TopicPartition(f"{name}.a", p) for p in (0, 1)]
    ends = [consumer.get_watermark_offsets(partition)[1] for partition in partitions]
    return place.offset > 0 and sum(ends) > place.offset + len(partitions)


_POINTS: dict[str, Callable[[Consumer, str], bool]] = {
    "another task is committed": _other_task_is_committed,
    "nothing is written": lambda _consumer, _name: True,
    "some is written": _is_written,
    "another task is committed, some is written": _other_task_is_committed_and_some_is_written,
}
