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
from acktree.schemas.header import ANCHOR, HEADER, SINGLE, Anchor, encode_header, single_headers
from acktree.schemas.ids import EdgeSource, IdArray, emitted_value, emitted_values, fnv1a64, origins_of
from acktree.schemas.registry import History, read_history
from acktree.spark.outbox import outbox

ANCHOR_BYTES = ANCHOR.itemsize

VALUES_SCHEMA = "version int, root bigint, value bigint"
_VALUES = pa.schema([("version", pa.int32()), ("root", pa.int64()), ("value", pa.int64())])
COUNT_SCHEMA = "roots bigint"


class BadColumn(AcktreeError):
    """A DataFrame given to the stage lacks a column or holds a value that cannot be written."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What the tasks of one batch need to know; ``version`` is the emission's, ``bolt`` "" for a spout."""

    bootstrap: str
    user: Settings
    history: History
    version: int
    bolt: str = ""


def write_tuples(batches: Iterator[pa.RecordBatch], plan: StagePlan, topic: str) -> Iterator[pa.RecordBatch]:
    """Write rows (value, anchors, optional key and headers) to a topic; yield the values per root."""
    box = outbox(plan.bootstrap, plan.user)
    reader_hashes = plan.history.readers(plan.version, topic).hashes
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        headers, values = _anchor(columns["anchors"], plan.version, box.edges, reader_hashes)
        payloads = columns["value"].to_pylist()
        keys = columns["key"].to_pylist() if "key" in columns else [None] * len(payloads)
        extra = columns["headers"].to_pylist() if "headers" in columns else None
        send, produce, delivered = box.send, box.producer.produce, box.delivered
        for index, (payload, key, header) in enumerate(zip(payloads, keys, headers, strict=True)):
            pairs: Any = None if header is None else [(HEADER, header)]
            if extra is not None and extra[index]:
                pairs = [*((pair["key"], pair["value"]) for pair in extra[index]), *(pairs or [])]
            try:
                produce(topic, payload, key, on_delivery=delivered, headers=pairs)
            except BufferError:
                send(topic, payload, key, pairs)
        box.producer.poll(0)
        if values is not None:
            yield values
    box.flush()


def _anchor(
    column: pa.Array, version: int, edges: EdgeSource, reader_hashes: tuple[int, ...]
) -> tuple[list[bytes | None], pa.RecordBatch | None]:
    """Return a header per row (None: untracked) and the rows' values folded per root."""
    raw = column.to_pylist()
    if not raw:
        return [], None
    if not column.null_count and all(len(item) == ANCHOR_BYTES for item in raw):
        rows = np.frombuffer(b"".join(raw), ANCHOR)
        fresh = edges.many(len(rows))
        if len(versions := np.unique(rows["version"])) == 1:
            packed = single_headers(version, int(versions[0]), rows["root"], fresh)
            size = SINGLE.itemsize
            headers: list[bytes | None] = [packed[at : at + size] for at in range(0, len(packed), size)]
            values = emitted_values(fresh, reader_hashes)
            return headers, values_batch(rows["version"], rows["root"], values)
    return _anchor_each(raw, version, edges, reader_hashes)


def _anchor_each(
    raw: list[bytes | None], version: int, edges: EdgeSource, reader_hashes: tuple[int, ...]
) -> tuple[list[bytes | None], pa.RecordBatch | None]:
    headers: list[bytes | None] = []
    told: list[tuple[int, int, int]] = []
    for item in raw:
        if not item:
            headers.append(None)
            continue
        if len(item) % ANCHOR_BYTES:
            raise BadColumn(f"column anchors holds {len(item)} bytes; keep it as it is, or concat several")
        anchors = np.unique(np.frombuffer(item, ANCHOR)[["version", "root"]])
        fresh = [Anchor(int(v), int(r), edges.one()) for v, r in anchors]
        headers.append(encode_header(version, fresh))
        told += [(anchor.version, anchor.root, emitted_value(anchor.edge, reader_hashes)) for anchor in fresh]
    if not told:
        return headers, None
    versions, roots, values = zip(*told, strict=True)
    return headers, values_batch(
        np.array(versions, np.uint16), np.array(roots, np.uint64), np.array(values, np.uint64)
    )


def values_batch(versions: np.ndarray[Any, Any], roots: IdArray, values: IdArray) -> pa.RecordBatch:
    """Return the values XORed per root, a root born in one version, as rows of VALUES_SCHEMA."""
    columns: list[list[np.ndarray[Any, Any]]] = [[], [], []]
    for version in np.unique(versions).tolist():
        mine = versions == version
        entries = fold_entries(np.ascontiguousarray(roots[mine]), np.ascontiguousarray(values[mine]))
        columns[0].append(np.full(len(entries), version, np.int32))
        columns[1].append(np.ascontiguousarray(entries["root"]).view(np.int64))
        columns[2].append(np.ascontiguousarray(entries["value"]).view(np.int64))
    return pa.RecordBatch.from_arrays([pa.array(np.concatenate(parts)) for parts in columns], schema=_VALUES)


def input_values(batches: Iterator[pa.RecordBatch], plan: StagePlan) -> Iterator[pa.RecordBatch]:
    """Yield what the inputs themselves add per root, so that a record that yields no row is told, too.

    For a spout that is 0, for a bolt the consumer edges that it owns.
    """
    own_hash = (fnv1a64(plan.bolt),) if plan.bolt else ()
    for batch in batches:
        raw = [item for item in batch.column("anchors").to_pylist() if item]
        if raw:
            rows = np.frombuffer(b"".join(raw), ANCHOR)
            values = emitted_values(np.ascontiguousarray(rows["edge"]), own_hash)
            yield values_batch(rows["version"], rows["root"], values)


def write_control(batches: Iterator[pa.RecordBatch], plan: StagePlan) -> Iterator[pa.RecordBatch]:
    """Fold all values of each root of this task and write its one init, or ack; yield how many."""
    box = outbox(plan.bootstrap, plan.user)
    table = pa.Table.from_batches(batches, _VALUES)
    versions = table.column("version").to_numpy()
    roots = table.column("root").to_numpy().view(np.uint64)
    values = table.column("value").to_numpy().view(np.uint64)
    written = 0

    def send(topic: str, partition: int, value: bytes) -> None:
        box.send(topic, value, None, None, partition)

    born_in = np.unique(versions).tolist()
    history = plan.history
    if not set(born_in) <= history.versions.keys():
        history = read_history(plan.bootstrap, history.name, plan.user)
    for version in born_in:
        mine = versions == version
        entries = fold_entries(roots[mine], values[mine])
        written += len(entries)
        if plan.bolt:
            acks = AckPacker(history, f"{plan.bolt}@spark", send)
            acks.ack_many(version, entries["root"], entries["value"])
            acks.flush()
            continue
        for task, chosen in _by_spout_task(history, version, entries["root"]):
            packer = InitPacker(history, task, send)
            packer.add_many(version, entries["root"][chosen], entries["value"][chosen])
            packer.flush()
    box.flush()
    yield pa.RecordBatch.from_arrays([pa.array([written], pa.int64())], ["roots"])


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
