"""Where the time goes from the start of `acktree spark run` to its first record, seen from outside.

Invariant: nothing is measured inside the run; the marks are a process, two files of the checkpoint, and the
record as a reader sees it.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import TopicPartition

from acktree.console.benches.cpu_time import CpuClock
from acktree.console.benches.spark_stage import PARTITIONS, drop_topics, new_topic, send
from acktree.console.demo.children import ChildProcess
from acktree.console.demo.run import wordcount_folder
from acktree.schemas.client_settings import consumer_settings
from acktree.schemas.clients import make_consumer
from acktree.schemas.errors import AcktreeError
from acktree.schemas.publish import apply_topology
from acktree.schemas.temporary_folder import temporary_folder
from acktree.schemas.topology import parse_topology

POLL_S = 0.01
LIMIT_S = 300.0
TOPOLOGY = """
name = "{name}"
ackers = 1
[spouts.in]
topics = ["{source}"]
emits = ["{name}.out"]
"""


class NoFirstRecord(AcktreeError):
    """The run ended, or wrote no record within LIMIT_S; the text has the end of its log."""


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
    cpu_s: float

    @property
    def total_s(self) -> float:
        return self.python_s + self.session_s + self.query_s + self.batch_s


def measure_start(bootstrap: str) -> SparkStart:
    """Run the wordcount stage over one record per partition."""
    name, source = f"bench-{uuid.uuid4().hex[:8]}", new_topic(bootstrap)
    send(bootstrap, source, PARTITIONS)
    plan = apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name, source=source)), {})
    with temporary_folder("bench") as folder:
        command = ["spark", "run", "split_lines:words", "--topology", name, "--spout", "in", "-b", bootstrap]
        command += ["--checkpoint", str(folder / "checkpoint")]
        run = ChildProcess("spark run", command, wordcount_folder(), folder / "log", {})
        try:
            return _measure(run, bootstrap, f"{name}.out", folder / "checkpoint")
        finally:
            run.stop()
            drop_topics(bootstrap, [source, *(topic for topic, *_ in plan.create)])


def _measure(run: ChildProcess, bootstrap: str, output: str, checkpoint: Path) -> SparkStart:
    reader = make_consumer(consumer_settings(bootstrap, f"{output}.look", {}))
    reader.assign([TopicPartition(output, partition, 0) for partition in range(PARTITIONS)])
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    try:
        with CpuClock(os.getpid()) as cpu:
            before_s, marks = cpu(), [time.monotonic()]
            others = set(own.read_text().split())
            run.start()
            (pid,) = set(own.read_text().split()) - others
            for is_there in (
                lambda: any(b"org.apache.spark" in line for line in _children_of(pid)),
                (checkpoint / "metadata").exists,
                (checkpoint / "offsets" / "0").exists,
                lambda: reader.poll(POLL_S) is not None,
            ):
                marks.append(_await(is_there, run))
            python_s, session_s, query_s, batch_s = (end_s - begin_s for begin_s, end_s in pairwise(marks))
            return SparkStart(python_s, session_s, query_s, batch_s, cpu() - before_s)
    finally:
        reader.close()


def _children_of(pid: str) -> Iterator[bytes]:
    """Yield the command lines of a process's children."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            yield Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue  # it has ended


def _await(is_there: Callable[[], bool], run: ChildProcess) -> float:
    """Return the time, by ``time.monotonic``, at which something is there."""
    deadline_s = time.monotonic() + LIMIT_S
    while not is_there():
        if run.exit_code is not None or time.monotonic() > deadline_s:
            raise NoFirstRecord(f"no record within {LIMIT_S:g} s; the end of its log:\n{run.tail()}")
        time.sleep(POLL_S)
    return time.monotonic()
