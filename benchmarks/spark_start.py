"""Where the time goes from the start of `acktree spark run` to its first record: `spark_rates.py --start`.

Invariant: nothing is measured inside the run; the marks are a process, two files of the checkpoint, and the
record as a reader sees it.
"""

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import TopicPartition

from clock import TreeClock
from harness import Cluster, Deployment, Table, new_name, wait_until
from spark_rates import send

PARTITIONS = 2
POLL_S = 0.01
LIMIT_S = 300.0
TOPOLOGY = """
name = "{name}"
ackers = 1
[spouts.in]
topics = ["{name}.in"]
emits = ["{name}.out"]
"""


class SparkStart(NamedTuple):
    """Seconds of each part, one after the other, and the processor time of all of them."""

    python_s: float
    """Imports, and the checks of broker and topology, until the JVM is started."""
    session_s: float
    """The JVM and the session, until the query is started."""
    query_s: float
    """The source opens and takes over, until the first batch is logged."""
    batch_s: float
    """Planning, the tasks' Python processes and the batch, until its first record can be read."""
    total_s: float
    cpu_s: float


def print_starts(kafka: Cluster, rounds: int) -> None:
    columns = "Python, s", "JVM and session, s", "query, s", "first batch, s", "all, s", "CPU s"
    table = Table("first record", *columns)
    for number in range(rounds):
        table.row(f"start {number + 1}", *measure_start(kafka))


def measure_start(kafka: Cluster) -> SparkStart:
    """Run the wordcount stage over one record per partition."""
    with kafka.deployment(TOPOLOGY.format(name=new_name()), {"in": PARTITIONS}) as deployment:
        send(kafka, f"{deployment.name}.in", PARTITIONS)
        return _measure(deployment)


def _measure(deployment: Deployment) -> SparkStart:
    checkpoint = deployment.folder / "checkpoint"
    stage = ["spark", "run", "split_lines:words", "--spout", "in", "--checkpoint", str(checkpoint)]
    run, reader = deployment.child(*stage), deployment.consumer("look")
    reader.assign([TopicPartition(f"{deployment.name}.out", number, 0) for number in range(PARTITIONS)])

    def time_of(is_there: Callable[[], bool]) -> float:
        wait_until(lambda: is_there() or run.exit_code is not None, LIMIT_S, "the first record", POLL_S)
        run.check_alive()
        return clock().wall_s

    with TreeClock(os.getpid()) as clock:
        begin = clock()
        run.start()
        marks = [
            begin.wall_s,
            time_of(lambda: any(b"org.apache.spark" in line for line in _children_of(run.pid))),
            time_of((checkpoint / "metadata").exists),
            time_of((checkpoint / "offsets" / "0").exists),
            time_of(lambda: reader.poll(POLL_S) is not None),
        ]
        spent = clock().since(begin)
    python_s, session_s, query_s, batch_s = (end_s - begin_s for begin_s, end_s in pairwise(marks))
    return SparkStart(python_s, session_s, query_s, batch_s, *spent)


def _children_of(pid: int) -> Iterator[bytes]:
    """Yield the command lines of a process's children."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            yield Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended
