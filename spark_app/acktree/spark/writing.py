"""The executor side of the stage: write tuples, then one init (or ack) per root.

Invariant: a task ends only when everything it produced is in the broker's log; a failed delivery fails the
task. A root's init is written by exactly one task, from the XOR over every tuple of the root in the batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from acktree.producers.packing import AckPacker, InitPacker, fold_entries
from acktree.schemas.clients import Settings
from acktree.schemas.errors import AcktreeError
from acktree.schemas.header import HEADER
from acktree.schemas.ids import IdArray, fnv1a64, origins_of
from acktree.schemas.registry import History, read_history
from acktree.spark.anchoring import VALUES, anchor_rows, own_values
from acktree.spark.outbox import Outbox, outbox
from acktree.spark.task_notes import check_note, take_note

COUNT_SCHEMA = "roots bigint"


class NotNarrow(AcktreeError):
    """A task was given a row whose root it has not read: the plan between is not narrow."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What the tasks of one batch need to know; ``version`` is the emission's, ``bolt`` "" for a spout."""

    bootstrap: str
    user: Settings
    history: History
    version: int
    bolt: str = ""

    @property
    def own_hashes(self) -> tuple[int, ...]:
        return (fnv1a64(self.bolt),) if self.bolt else ()


def write_tuples(batches: Iterator[pa.RecordBatch], plan: StagePlan, topic: str) -> Iterator[pa.RecordBatch]:
    """Write rows (value, anchors, optional key and headers) to a topic; yield the values per root."""
    box = outbox(plan.bootstrap, plan.user)
    reader_hashes = plan.history.readers(plan.version, topic).hashes
    for batch in batches:
        if (values := _write_rows(batch, plan.version, topic, box, reader_hashes)) is not None:
            yield values
    box.settle()


def _write_rows(
    batch: pa.RecordBatch, version: int, topic: str, box: Outbox, reader_hashes: tuple[int, ...]
) -> pa.RecordBatch | None:
    columns = {name: batch.column(name) for name in batch.schema.names}
    headers, values = anchor_rows(columns["anchors"], version, box.edges, reader_hashes)
    payloads = columns["value"].to_pylist()
    keys = columns["key"].to_pylist() if "key" in columns else [None] * len(payloads)
    extra = columns["headers"].to_pylist() if "headers" in columns else None
    for index, (payload, key, header) in enumerate(zip(payloads, keys, headers, strict=True)):
        pairs: Any = None if header is None else [(HEADER, header)]
        if extra is not None and extra[index]:
            pairs = [*((pair["key"], pair["value"]) for pair in extra[index]), *(pairs or [])]
        box.produce(topic, payload, key, pairs)
    box.serve()
    return values


def write_whole(batches: Iterator[pa.RecordBatch], plan: StagePlan, topic: str) -> Iterator[pa.RecordBatch]:
    """Write tuples and then the inits of all roots that this task has read; yield how many roots.

    Only for a narrow plan with one output: every row of a root is read and written in one task.

    Raises:
        NoNote, NotNarrow: the plan was not narrow; no init has been sent.
    """
    box = outbox(plan.bootstrap, plan.user)
    reader_hashes = plan.history.readers(plan.version, topic).hashes
    written: list[pa.RecordBatch] = []
    for batch in batches:
        check_note()
        if (values := _write_rows(batch, plan.version, topic, box, reader_hashes)) is not None:
            written.append(values)
    inputs = own_values(take_note(), plan.own_hashes)
    known = inputs.column("root").to_numpy()
    if not all(np.isin(values.column("root").to_numpy(), known).all() for values in written):
        raise NotNarrow("a row of this task has a root that was read by another one")
    box.settle()
    yield _write_roots([inputs, *written], plan, box)


def input_values(batches: Iterator[pa.RecordBatch], plan: StagePlan) -> Iterator[pa.RecordBatch]:
    """Yield what the inputs themselves add per root, so that a record that yields no row is told, too."""
    for batch in batches:
        yield own_values(b"".join(filter(None, batch.column("anchors").to_pylist())), plan.own_hashes)


def write_control(batches: Iterator[pa.RecordBatch], plan: StagePlan) -> Iterator[pa.RecordBatch]:
    """Fold all values of each root of this task and write its one init, or ack; yield how many roots."""
    yield _write_roots(list(batches), plan, outbox(plan.bootstrap, plan.user))


def _write_roots(parts: list[pa.RecordBatch], plan: StagePlan, box: Outbox) -> pa.RecordBatch:
    table = pa.Table.from_batches(parts, VALUES)
    versions = table.column("version").to_numpy()
    roots = table.column("root").to_numpy().view(np.uint64)
    values = table.column("value").to_numpy().view(np.uint64)
    born_in = np.unique(versions).tolist()
    history = plan.history
    if not set(born_in) <= history.versions.keys():
        history = read_history(plan.bootstrap, history.name, plan.user)

    count = 0
    for version in born_in:
        mine = versions == version
        entries = fold_entries(roots[mine], values[mine])
        count += len(entries)
        if plan.bolt:
            acks = AckPacker(history, f"{plan.bolt}@spark", box.send)
            acks.ack_many(version, entries["root"], entries["value"])
            acks.flush()
            continue
        for task, chosen in _by_spout_task(history, version, entries["root"]):
            inits = InitPacker(history, task, box.send)
            inits.add_many(version, entries["root"][chosen], entries["value"][chosen])
            inits.flush()
    box.settle()
    return pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], ["roots"])


def _by_spout_task(
    history: History, version: int, roots: IdArray
) -> Iterator[tuple[int, np.ndarray[Any, np.dtype[np.bool_]]]]:
    published = history.at(version)
    task_of = np.full(1 + max((slot.slot for slot in published.slots), default=0), -1)
    for slot in published.slots:
        if slot.spout in published.spout_tasks:
            task_of[slot.slot] = published.task_of(slot)
    tasks = task_of[origins_of(np.ascontiguousarray(roots))[0]]
    for task in np.unique(tasks).tolist():
        yield task, tasks == task
