"""Headers and values of outgoing tuples: a fresh edge per tuple and root, folded per root.

Invariant: what a header says and what is folded are the same edges. Randomness comes from the EdgeSource
given; nothing here knows Kafka.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from acktree.producers.packing import fold_entries
from acktree.schemas.errors import AcktreeError
from acktree.schemas.header import ANCHOR, SINGLE, Anchor, encode_header, single_headers
from acktree.schemas.ids import EdgeSource, IdArray, emitted_value, emitted_values

ANCHOR_BYTES = ANCHOR.itemsize

VALUES_SCHEMA = "version int, root bigint, value bigint"
VALUES = pa.schema([("version", pa.int32()), ("root", pa.int64()), ("value", pa.int64())])


class BadColumn(AcktreeError):
    """A DataFrame given to the stage lacks a column or holds a value that cannot be written."""


def anchor_rows(
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
    columns: list[list[np.ndarray[Any, Any]]] = [[np.empty(0, d)] for d in (np.int32, np.int64, np.int64)]
    for version in np.unique(versions).tolist():
        mine = versions == version
        entries = fold_entries(np.ascontiguousarray(roots[mine]), np.ascontiguousarray(values[mine]))
        columns[0].append(np.full(len(entries), version, np.int32))
        columns[1].append(np.ascontiguousarray(entries["root"]).view(np.int64))
        columns[2].append(np.ascontiguousarray(entries["value"]).view(np.int64))
    return pa.RecordBatch.from_arrays([pa.array(np.concatenate(parts)) for parts in columns], schema=VALUES)


def own_values(anchors: bytes, own_hashes: tuple[int, ...]) -> pa.RecordBatch:
    """Return what inputs add per root: 0 for a spout, for a bolt the consumer edges that it owns."""
    rows = np.frombuffer(anchors, ANCHOR)
    return values_batch(rows["version"], rows["root"], emitted_values(rows["edge"].copy(), own_hashes))
