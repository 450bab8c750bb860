"""Hands the trace contexts of a read task to the stage in the same Spark task: a file beside the hand-off.

The file exists only if a record has a trace context. An entry is keyed by its row's first anchor, which a
transform keeps; entries are in the file before their rows leave the reader.
Invariant: a trace never decides what is written: a row that is not found here has no trace.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from acktree.spark.tasks.handoff import handoff_path, traces_path
from acktree.wire.header import ANCHOR_BYTES
from acktree.wire.ids import RootId
from acktree.wire.trace_context import TraceContext, span_of_emission, span_of_execution

MAX_TRACES = 200_000
"""How many are kept in memory; a row that comes after more others than this goes without."""

_ENTRY = struct.Struct(f"<{ANCHOR_BYTES}sHH55s")
_CHUNK_BYTES = 1 << 16
_ROOT = slice(2, 10)


class HandedTrace(NamedTuple):
    """The trace that a row's tuples carry: ``parent``, and the state of the record's own ``context``."""

    context: TraceContext
    parent: bytes


def emitted_by_spout(context: TraceContext, root: RootId | int) -> HandedTrace:
    """Return what the tuples of a source record carry: their parent is its emission."""
    return HandedTrace(context, context.child_of(span_of_emission(root)))


def add_traces(
    traces: Mapping[int, TraceContext], batch: pa.RecordBatch, bolt: str, declared_by: str
) -> None:
    """Add the trace contexts, by offset, of rows that were read; an untracked row has no anchor to find."""
    path = handoff_path(declared_by)
    if path is None:
        return
    entries = []
    columns = (batch.column(name) for name in ("anchors", "topic", "partition", "offset"))
    for anchors, topic, partition, offset in zip(*(each.to_pylist() for each in columns), strict=True):
        if not anchors or (context := traces.get(offset)) is None:
            continue
        handed = emitted_by_spout(context, int.from_bytes(anchors[_ROOT], "little"))
        if bolt:
            span_id = span_of_execution(bolt, topic, partition, offset)
            handed = HandedTrace(context, context.child_of(span_id))
        state = context.state or b""
        head = _ENTRY.pack(anchors[:ANCHOR_BYTES], len(context.parent), len(state), handed.parent)
        entries.append(head + context.parent + state)
    with traces_path(path).open("ab") as file:
        file.write(b"".join(entries))


class HandedTraces:
    """Finds the trace contexts that this task's reader has handed over."""

    def __init__(self, declared_by: str = "") -> None:
        handoff = handoff_path(declared_by)
        self._path: Path | None = None if handoff is None else traces_path(handoff)
        self._position = 0
        self._unread = b""
        self._by_anchor: dict[bytes, HandedTrace] = {}

    def of_rows(self, anchors: pa.Array) -> list[HandedTrace | None] | None:
        """Return the trace of each row of the column ``anchors``; None where no record has had one."""
        if self._path is None or not (self._position or self._path.exists()):
            return None
        return [self._find(item[:ANCHOR_BYTES]) if item else None for item in anchors.to_pylist()]

    def _find(self, anchor: bytes) -> HandedTrace | None:
        while (found := self._by_anchor.get(anchor)) is None and self._read_more():
            pass
        return found

    def _read_more(self) -> bool:
        assert self._path is not None
        with self._path.open("rb") as file:
            file.seek(self._position)
            chunk = file.read(_CHUNK_BYTES)
        self._position += len(chunk)
        data, at = self._unread + chunk, 0
        while len(data) - at >= _ENTRY.size:
            anchor, parent_bytes, state_bytes, parent = _ENTRY.unpack_from(data, at)
            middle = at + _ENTRY.size + parent_bytes
            if len(data) < middle + state_bytes:
                break
            theirs, state = data[at + _ENTRY.size : middle], data[middle : middle + state_bytes]
            context = TraceContext("", "", "", theirs, state or None)
            self._by_anchor[anchor] = HandedTrace(context, parent)
            at = middle + state_bytes
        self._unread = data[at:]
        while len(self._by_anchor) > MAX_TRACES:
            del self._by_anchor[next(iter(self._by_anchor))]
        return bool(chunk)
