"""The executor side of the source: reads exactly the offsets a batch names, as Arrow batches.

Invariant: a task ends only when it has read up to the end of its range; missing offsets (compaction,
transaction markers) are proven absent by reading past them, and reported to the ledger.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from acktree.core.topology.registry import Published
from acktree.producers.ledger.logged_batch import PlannedBatch, Range, Replays
from acktree.producers.ledger.partitions.retries import REPLAY_GAP
from acktree.spark.shared.batch_commits import ReadTaskName, digest
from acktree.spark.shared.options import SourceOptions
from acktree.spark.tasks.binary_rows import binary_of
from acktree.spark.tasks.handoff import add_to_handoff, begin_handoff, end_handoff
from acktree.spark.tasks.producers import task_producer
from acktree.spark.tasks.reading.bolt_anchors import bolt_anchors
from acktree.spark.tasks.reading.fetching import Fetched
from acktree.spark.tasks.reading.read_range import SMALL_BATCH, ReadRange, read_records
from acktree.spark.tasks.trace_handoff import add_traces
from acktree.wire.codec import encode_absent
from acktree.wire.control_records import Absent, Span
from acktree.wire.header import ANCHOR
from acktree.wire.trace_context import TraceContext

MAX_SPANS = 20_000

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, anchors binary"
)
HEADERS_COLUMN = ", headers array<struct<key: string, value: binary>>"


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """The ranges that one task reads, blocks as a whole; no other task begins with the same partition.

    If the plan is declared narrow, ``declared_by`` is the group that reads, and ``number`` that of the only
    task of Spark which may read this; without ranges there is nothing to read. ``claim`` is that of a bolt's
    driver.
    """

    ranges: tuple[ReadRange, ...]
    declared_by: str = ""
    number: int = 0
    claim: str = ""

    @property
    def name(self) -> ReadTaskName:
        first = self.ranges[0]
        what = [(p.topic, p.partition, p.generation, p.start, p.end, p.only, p.block) for p in self.ranges]
        return ReadTaskName(first.topic, first.partition, first.end, digest(what), self.claim)


def read_tasks(options: SourceOptions, published: Published, batch: PlannedBatch) -> list[ReadTask]:
    """Return a task per partition with new records; the first takes the replays, or all of a small batch.

    A batch that Spark has logged may have none: the position of a query that began where nothing was to read.
    """
    fresh, again = _read_ranges(options, published, batch)
    if not fresh and not again:
        return []
    if batch.records <= SMALL_BATCH:
        return [ReadTask((*fresh, *again))]
    parts: dict[tuple[str, int], list[ReadRange]] = {}
    for range_ in fresh or again[:1]:
        parts.setdefault((range_.topic, range_.partition), []).append(range_)
    first, *others = parts.values()
    return [ReadTask(tuple(part)) for part in ([*first, *(again if fresh else again[1:])], *others)]


def declared_tasks(tasks: list[ReadTask], group: str) -> list[ReadTask]:
    """Return the numbered tasks of a batch whose plan is declared narrow, after one that reads nothing.

    To Spark the rows of one single task need no shuffle: behind ``coalesce(1)`` it would keep them as state
    in the task that reads them.
    """
    return [replace(each, declared_by=group, number=n) for n, each in enumerate([ReadTask(()), *tasks])]


def _read_ranges(
    options: SourceOptions, published: Published, batch: PlannedBatch
) -> tuple[list[ReadRange], list[ReadRange]]:
    """Return what to read for the ranges and for the replays.

    Replays that are close together are read as one range; the consumer seeks to distant ones.
    """
    anchored = (published.ackers > 0 and not options.complete_by_batch) or bool(options.bolt)
    topics: dict[int, str] = {}
    if options.spout and anchored:
        slots = published.slots_of(options.spout)
        topics = {slot.slot: published.result_topic(published.task_of(slot)) for slot in slots}

    def place(entry: Range | Replays, generation: int) -> tuple[str, int, int, int, int, bool, str | None]:
        return (
            entry.topic,
            entry.partition,
            entry.slot,
            generation,
            batch.version,
            anchored,
            topics.get(entry.slot),
        )

    ranges = [r for r in (*batch.ranges, *batch.again) if r.start < r.end]
    fresh = [ReadRange(options, *place(r, r.run << 4), r.start, r.end, block=r.block) for r in ranges]
    again: list[ReadRange] = []
    for replays in batch.replays:
        for only in _clusters(replays.offsets):
            bounds = (only[0], only[-1] + 1)
            again.append(ReadRange(options, *place(replays, replays.generation), *bounds, tuple(only)))
    return fresh, again


def _clusters(offsets: Iterable[int]) -> list[list[int]]:
    clusters: list[list[int]] = []
    for offset in offsets:
        if clusters and offset - clusters[-1][-1] <= REPLAY_GAP:
            clusters[-1].append(offset)
        else:
            clusters.append([offset])
    return clusters


def read_offsets(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task's ranges and hand their anchors over to the stage.

    Raises:
        OffsetOutOfRange: the topic no longer holds what was planned, and failOnDataLoss is true.
        ReadStalled: no progress for STALL_S seconds.
        NotOneToOne: the plan was declared narrow, and is not.
    """
    # Life of a record, step 3.
    begin_handoff(task.name if task.ranges else None, task.declared_by, task.number)
    for range_, records, lost in read_records(task.ranges):
        yield from _read_range(range_, records, lost, task.declared_by)
    end_handoff(task.declared_by)


def _read_range(
    range_: ReadRange, records: Iterator[Fetched], lost: Sequence[Span], declared_by: str
) -> Iterator[pa.RecordBatch]:
    wanted = np.arange(range_.start, range_.end) if range_.only is None else np.array(range_.only)
    only = None if range_.only is None else wanted
    seen: list[NDArray[np.int64]] = []
    for fetched in records:
        rows = fetched if only is None else fetched.where(np.isin(fetched.offsets, only))
        if len(rows.offsets):
            seen.append(rows.offsets)
            batch = _to_arrow(range_, rows)
            add_to_handoff(_bytes_of(batch.column("anchors")), declared_by)
            if rows.traces:
                add_traces(rows.traces, batch, range_.options.bolt, declared_by)
            yield batch
    if range_.result_topic is not None and sum(map(len, seen)) < len(wanted):
        absent = np.setdiff1d(wanted, np.concatenate([np.empty(0, np.int64), *seen]), assume_unique=True)
        is_lost = np.zeros(len(absent), bool)
        for first, following in lost:
            is_lost |= (absent >= first) & (absent < following)
        _send_absent(range_, range_.result_topic, absent[~is_lost], is_lost=False)
        _send_absent(range_, range_.result_topic, absent[is_lost], is_lost=True)


def task_anchors(task: ReadTask) -> Iterator[bytes]:
    """Yield the anchors of what a task reads, 18 bytes each; those of a bolt's tuples are read for it.

    Raises what ``read_offsets`` raises. A spout's absent offsets also have anchors.
    """
    for range_, records, _ in read_records([each for each in task.ranges if each.options.bolt]):
        for fetched in records:
            yield _bytes_of(_anchors(range_, fetched.own, fetched.offsets))
    for range_ in (each for each in task.ranges if not each.options.bolt):
        offsets = np.arange(range_.start, range_.end) if range_.only is None else np.array(range_.only)
        yield _bytes_of(_anchors(range_, None, offsets))


def _send_absent(range_: ReadRange, topic: str, absent: NDArray[np.int64], *, is_lost: bool) -> None:
    """Report offsets that hold no record; ``is_lost``: they did."""
    if not len(absent):
        return
    runs = np.split(absent, np.flatnonzero(np.diff(absent) != 1) + 1)
    spans = [Span(int(run[0]), int(run[-1]) + 1) for run in runs]
    output, run = (
        task_producer(range_.options.bootstrap, range_.options.kafka),
        range_.generation >> 4,
    )
    for at in range(0, len(spans), MAX_SPANS):
        record = encode_absent(Absent(range_.slot, run, spans[at : at + MAX_SPANS], is_lost))
        output.produce(topic, record, None)  # it has one partition
    output.flush_and_commit()


def _to_arrow(range_: ReadRange, rows: Fetched) -> pa.RecordBatch:
    count = len(rows.offsets)
    columns = [
        rows.keys,
        rows.values,
        pa.repeat(range_.topic, count),
        pa.array(np.full(count, range_.partition, np.int32)),
        pa.array(rows.offsets),
        rows.stamps,
        rows.kinds,
        _anchors(range_, rows.own, rows.offsets, rows.traces),
    ]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "anchors"]
    if rows.headers is not None:
        columns.append(rows.headers)
        names.append("headers")
    return pa.RecordBatch.from_arrays(columns, names)


def _bytes_of(column: pa.Array) -> bytes:
    """Return the values of a binary column that was just made, end to end."""
    _, bounds, data = column.buffers()
    if data is None:
        return b""
    end = np.frombuffer(bounds, np.int32, len(column) + 1)[-1]
    return memoryview(data)[:end].tobytes()


def _anchors(
    range_: ReadRange,
    own: pa.Array | None,
    offsets: NDArray[np.int64],
    traces: Mapping[int, TraceContext] | None = None,
) -> pa.Array:
    """Return the anchors of records; ``own`` are the headers of a bolt's tuples.

    A spout's record has no edge. In its place one of the ``traces`` is marked by its place in its block, from
    1, which says after a shuffle whose trace it is.
    """
    if not range_.anchored:
        return pa.nulls(len(offsets), pa.binary())
    if own is not None:
        options = range_.options
        intake = bolt_anchors(options.bootstrap, options.topology, options.bolt, options.kafka)
        return intake.of_all(own, range_.topic, range_.partition, offsets)
    rows = np.zeros(len(offsets), ANCHOR)
    rows["version"] = range_.version
    rows["root"] = range_.roots(offsets)
    if traces:
        traced = np.isin(offsets, list(traces))
        rows["edge"][traced] = (offsets - range_.firsts_of(offsets) + 1)[traced]
    return binary_of(rows)
