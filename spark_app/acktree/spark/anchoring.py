"""Headers and values of outgoing tuples: a fresh edge per tuple and root, folded per root.

Invariant: what a header says and what is folded are the same edges. Randomness comes from the EdgeSource
given; nothing here knows Kafka.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from acktree.producers.packing import fold_entries
from acktree.schemas.errors import AcktreeError
from acktree.schemas.header import ANCHOR, Anchor, encode_header, single_headers
from acktree.schemas.ids import EdgeSource, IdArray, emitted_value, emitted_values
from acktree.spark.binary_rows import rows_of

ANCHOR_BYTES = ANCHOR.itemsize

VALUES_SCHEMA = "version int, root bigint, value bigint, reason string"
VALUES = pa.schema(
    [("version", pa.int32()), ("root", pa.int64()), ("value", pa.int64()), ("reason", pa.string())]
)
"""What rows say of their roots: a value to fold, or, where ``reason`` is not null, why the root failed."""

Headers = NDArray[np.void] | Sequence[bytes | None] | None


class BadColumn(AcktreeError):
    """A DataFrame given to the stage lacks a column or holds a value that cannot be written."""


def anchor_rows(
    column: pa.Array, version: int, edges: EdgeSource, reader_hashes: tuple[int, ...]
) -> tuple[Headers, pa.RecordBatch | None]:
    """Return a header per row (None: untracked, or all are) and the rows' values folded per root."""
    if column.null_count == len(column):
        return None, None
    if (rows := rows_of(column, ANCHOR)) is not None and (rows["version"] == rows["version"][0]).all():
        fresh = edges.many(len(rows))
        headers = single_headers(version, int(rows["version"][0]), rows["root"], fresh)
        return headers, values_batch(rows["version"], rows["root"], emitted_values(fresh, reader_hashes))
    return _anchor_each(column.to_pylist(), version, edges, reader_hashes)


def _anchor_each(
    raw: list[bytes | None], version: int, edges: EdgeSource, reader_hashes: tuple[int, ...]
) -> tuple[Headers, pa.RecordBatch | None]:
    headers: list[bytes | None] = []
    told: list[tuple[int, int, int]] = []
    for item in raw:
        if not item:
            headers.append(None)
            continue
        fresh = [
            Anchor(int(v), int(r), edges.one()) for v, r in np.unique(_anchors(item)[["version", "root"]])
        ]
        headers.append(encode_header(version, fresh))
        told += [(anchor.version, anchor.root, emitted_value(anchor.edge, reader_hashes)) for anchor in fresh]
    if not told:
        return None, None
    versions, roots, values = zip(*told, strict=True)
    return headers, values_batch(
        np.array(versions, np.uint16), np.array(roots, np.uint64), np.array(values, np.uint64)
    )


def _anchors(item: bytes) -> NDArray[np.void]:
    if len(item) % ANCHOR_BYTES:
        raise BadColumn(f"column anchors holds {len(item)} bytes; keep it as it is, or use merge_anchors")
    return np.frombuffer(item, ANCHOR)


def values_batch(versions: NDArray[Any], roots: IdArray, values: IdArray) -> pa.RecordBatch:
    """Return the values XORed per root, a root born in one version, as rows of VALUES."""
    parts: list[list[NDArray[Any]]] = [[np.empty(0, d)] for d in (np.int32, np.int64, np.int64)]
    for version, mine in by_version(versions):
        entries = fold_entries(np.ascontiguousarray(roots[mine]), np.ascontiguousarray(values[mine]))
        parts[0].append(np.full(len(entries), version, np.int32))
        parts[1].append(np.ascontiguousarray(entries["root"]).view(np.int64))
        parts[2].append(np.ascontiguousarray(entries["value"]).view(np.int64))
    columns = [pa.array(np.concatenate(part)) for part in parts]
    return pa.RecordBatch.from_arrays([*columns, pa.nulls(len(columns[0]), pa.string())], schema=VALUES)


def by_version(versions: NDArray[Any]) -> Iterator[tuple[int, Any]]:
    """Yield each version with the index of its rows; mostly there is one, of all."""
    if len(versions) and (versions == versions[0]).all():
        yield int(versions[0]), slice(None)
        return
    for version in np.unique(versions).tolist():
        yield version, versions == version


def own_values(anchors: bytes, own_hashes: tuple[int, ...]) -> pa.RecordBatch:
    """Return what inputs add per root: 0 for a spout, for a bolt the consumer edges that it owns."""
    rows = np.frombuffer(anchors, ANCHOR)
    return values_batch(rows["version"], rows["root"], emitted_values(rows["edge"].copy(), own_hashes))


def failed_roots(anchors: Sequence[bytes | None], reasons: Sequence[str]) -> pa.RecordBatch:
    """Return rows of VALUES that say why roots failed, one per row and root."""
    told: dict[tuple[int, int], str] = {}
    for item, reason in zip(anchors, reasons, strict=True):
        for anchor in _anchors(item or b""):
            told.setdefault((int(anchor["version"]), int(anchor["root"])), reason)
    roots = np.array([root for _, root in told], np.uint64).view(np.int64)
    columns = [
        pa.array([version for version, _ in told], pa.int32()),
        pa.array(roots),
        pa.array(np.zeros(len(told), np.int64)),
        pa.array(list(told.values()), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=VALUES)
