"""Spark tracked against Spark untracked: the same source, transform and sink, in alternating runs.

Tracked has everything: anchors, inits, an acker in its own process, verdicts, commits. Untracked is the same
topology with ackers = 0: no header, no init; a record is done when its batch is.
"""

import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import NewTopic

from acktree.console.demo.children import Child
from acktree.console.demo.run import wordcount_folder
from acktree.schemas.clients import clear_errors, make_admin, make_producer, producer_settings
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology

PARTITIONS = 2
LINE = "one record of a hundred bytes that is split into some twenty words so that the stage has a lot to do"
Transform = Callable[[Any], Any]

TOPOLOGY = """
name = "{name}"
ackers = {ackers}
message_timeout_s = 300
[spouts.in]
topics = ["{source}"]
emits = ["{name}.out"]
max_pending = {records}
"""


class Compared(NamedTuple):
    """Medians in records a second."""

    tracked_per_s: float
    untracked_per_s: float


def fill(bootstrap: str, records: int) -> str:
    """Make a source topic with so many records of 100 bytes; return its name."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin = make_admin(bootstrap, {})
    with clear_errors(bootstrap):
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result()
    producer = make_producer(producer_settings(bootstrap, {}))
    for number in range(records):
        while True:
            try:
                producer.produce(topic, LINE, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def transforms() -> dict[str, Transform]:
    """Return the pipelines to compare: records as they are, and the wordcount example's words."""
    sys.path.insert(0, str(wordcount_folder()))
    from acktree.spark.app import load_function

    return {"pass-through": _same, "line-split": load_function("split_lines:words")}


def _same(rows: Any) -> Any:
    return rows


def compare(bootstrap: str, source: str, records: int, transform: Transform, rounds: int) -> Compared:
    """Run tracked and untracked in turn, ``rounds`` times each after one unmeasured run of each."""
    rates: dict[int, list[float]] = {0: [], 1: []}
    for number in range(rounds + 1):
        for ackers, kept in rates.items():
            seconds = _run(bootstrap, source, records, transform, ackers)
            if number:
                kept.append(records / seconds)
    return Compared(statistics.median(rates[1]), statistics.median(rates[0]))


def _run(bootstrap: str, source: str, records: int, transform: Transform, ackers: int) -> float:
    from acktree.spark import app

    name = f"bench-{uuid.uuid4().hex[:8]}"
    text = TOPOLOGY.format(name=name, ackers=ackers, source=source, records=records)
    apply_topology(bootstrap, parse_topology(text), {})
    options = {"kafka.bootstrap.servers": bootstrap, "topology": name, "spout": "in"}
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="acktree-bench-")))
        if ackers:
            running.enter_context(_acker(bootstrap, name, folder))
        spark = app.make_session("acktree bench")
        began_s = time.perf_counter()
        query = app.start(spark, transform, options, folder / "checkpoint", app.AVAILABLE_NOW)
        query.awaitTermination()
        return time.perf_counter() - began_s


@contextmanager
def _acker(bootstrap: str, name: str, folder: Path) -> Iterator[None]:
    acker = Child("acker", ["acker", "run", "--topology", name, "-b", bootstrap], folder, folder / "log", {})
    acker.start()
    try:
        acker.wait_ready(lambda: None)
        yield
    finally:
        acker.stop()
