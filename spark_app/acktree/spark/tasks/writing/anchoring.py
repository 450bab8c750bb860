"""Makes the headers and values of outgoing tuples: a fresh edge per tuple and root, folded per root.

Invariant: the edges in the headers are the edges that are folded. Randomness comes from the EdgeSource given;
nothing here knows Kafka.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from acktree.core.edges import EdgeSource
from acktree.producers.collecting.arithmetic.packing import fold_entries
from acktree.spark.tasks.binary_rows import rows_of
from acktree.wire.control_records import BACK_OFF, ENTRY, EntryArray, stronger
from acktree.wire.errors import AcktreeError
from acktree.wire.header import ANCHOR, Anchor, encode_header, single_headers
from acktree.wire.ids import IdArray, emitted_value, emitted_values

ANCHOR_BYTES = ANCHOR.itemsize

VALUES_SCHEMA = "version int, root bigint, value bigint, reason string, retry_after_ms bigint"
VALUES = pa.schema(
    [
        ("version", pa.int32()),
        ("root", pa.int64()),
        ("value", pa.int64()),
        ("reason", pa.string()),
        ("retry_after_ms", pa.int64()),
    ]
)
"""What rows add to their roots: a value to fold, or, where ``reason`` is not null, how the root failed."""

Headers = NDArray[np.void] | Sequence[bytes | None] | None


class BadColumn(AcktreeError):
    """A DataFrame given to the stage lacks a column or holds a value that cannot be written."""


class RootFailure(NamedTuple):
    """The failure of a root; ``retry_after_ms`` is a delay, BACK_OFF or NEVER."""

    reason: str
    retry_after_ms: int = BACK_OFF


@dataclass(frozen=True, slots=True)
class RootUpdates:
    """The updates that rows add to roots of one version: values to fold, (n,) of ENTRY, and failures.

    A root may come several times.
    """

    version: int
    entries: EntryArray
    failed: Mapping[int, RootFailure] = field(default_factory=dict)


def anchor_rows(
    column: pa.Array, version: int, edges: EdgeSource, reader_hashes: tuple[int, ...]
) -> tuple[Headers, list[RootUpdates]]:
    """Return a header per row (None: untracked, or all are) and what the rows add to their roots."""
    # Life of a record, step 5.
    if column.null_count == len(column):
        return None, []
    rows = rows_of(column, ANCHOR)
    if rows is None or (rows["version"] != rows["version"][0]).any():
        return _anchor_each(column.to_pylist(), version, edges, reader_hashes)
    of_rows, own = int(rows["version"][0]), edges.many(len(rows))
    entries = fold_entries(rows["root"], emitted_values(own, reader_hashes))
    return single_headers(version, of_rows, rows["root"], own), [RootUpdates(of_rows, entries)]


def _anchor_each(
    raw: list[bytes | None], version: int, edges: EdgeSource, reader_hashes: tuple[int, ...]
) -> tuple[Headers, list[RootUpdates]]:
    headers: list[bytes | None] = []
    updates: list[tuple[int, int, int]] = []
    for item in raw:
        if not item:
            headers.append(None)
            continue
        fresh = [
            Anchor(int(v), int(r), edges.one()) for v, r in np.unique(_anchors(item)[["version", "root"]])
        ]
        headers.append(encode_header(version, fresh))
        updates += [
            (anchor.version, anchor.root, emitted_value(anchor.edge, reader_hashes)) for anchor in fresh
        ]
    if not updates:
        return None, []
    versions, roots, values = (np.array(column, np.uint64) for column in zip(*updates, strict=True))
    return headers, list(_by_version(versions, roots, values))


def _anchors(item: bytes) -> NDArray[np.void]:
    if len(item) % ANCHOR_BYTES:
        raise BadColumn(f"column anchors holds {len(item)} bytes; keep it as it is, or use merge_anchors")
    return np.frombuffer(item, ANCHOR)


def own_values(rows: NDArray[np.void], own_hashes: tuple[int, ...]) -> list[RootUpdates]:
    """Return what inputs, (n,) of ANCHOR, add: 0 for a spout, for a bolt the consumer edges that it owns."""
    return list(_by_version(rows["version"], rows["root"], emitted_values(rows["edge"].copy(), own_hashes)))


def fold(updates: Iterable[RootUpdates]) -> list[RootUpdates]:
    """Return one update per version with one entry per root; of failures, the first of the strongest."""
    parts: dict[int, list[RootUpdates]] = {}
    for each in updates:
        parts.setdefault(each.version, []).append(each)
    return [
        RootUpdates(version, _folded(_joined(parts)), _strongest(parts)) for version, parts in parts.items()
    ]


def _folded(entries: EntryArray) -> EntryArray:
    return fold_entries(*(np.ascontiguousarray(entries[name]) for name in ("root", "value")))


def _joined(updates: Sequence[RootUpdates]) -> EntryArray:
    return np.concatenate([np.empty(0, ENTRY), *(each.entries for each in updates)])


def _strongest(updates: Sequence[RootUpdates]) -> dict[int, RootFailure]:
    failed: dict[int, RootFailure] = {}
    for each in updates:
        for root, failure in each.failed.items():
            _add_failure(failed, root, failure)
    return failed


def _add_failure(failed: dict[int, RootFailure], root: int, failure: RootFailure) -> None:
    """Keep the first of the strongest failures of a root, as a worker's packer of acks does."""
    known = failed.get(root)
    if known is None or stronger(known.retry_after_ms, failure.retry_after_ms) != known.retry_after_ms:
        failed[root] = failure


def _by_version(versions: NDArray[Any], roots: IdArray, values: IdArray) -> Iterator[RootUpdates]:
    entries = np.empty(len(roots), ENTRY)
    entries["root"], entries["value"] = roots, values
    if len(versions) and (versions == versions[0]).all():
        yield RootUpdates(int(versions[0]), entries)
        return
    for version in np.unique(versions).tolist():
        yield RootUpdates(version, entries[versions == version])


def failed_roots(anchors: Sequence[bytes | None], failures: Sequence[RootFailure]) -> list[RootUpdates]:
    """Return why the roots of rows failed."""
    said = (
        (anchor, failure)
        for item, failure in zip(anchors, failures, strict=True)
        for anchor in _anchors(item or b"")
    )
    return _failed((int(anchor["version"]), int(anchor["root"]), failure) for anchor, failure in said)


def _failed(rows: Iterable[tuple[int, int, RootFailure]]) -> list[RootUpdates]:
    by_version: dict[int, dict[int, RootFailure]] = {}
    for version, root, failure in rows:
        _add_failure(by_version.setdefault(version, {}), root, failure)
    updates = []
    for version, failed in by_version.items():
        entries = np.zeros(len(failed), ENTRY)
        entries["root"] = np.fromiter(failed, np.uint64, len(failed))
        updates.append(RootUpdates(version, entries, failed))
    return updates


def to_arrow(updates: RootUpdates) -> pa.RecordBatch:
    """Return rows of VALUES, one per entry."""
    count = len(updates.entries)
    reasons, retries = pa.nulls(count, pa.string()), pa.nulls(count, pa.int64())
    if updates.failed:
        failures = [updates.failed.get(root) for root in updates.entries["root"].tolist()]
        reasons = pa.array([each and each.reason for each in failures], pa.string())
        retries = pa.array([each and each.retry_after_ms for each in failures], pa.int64())
    ids = (np.ascontiguousarray(updates.entries[name]).view(np.int64) for name in ("root", "value"))
    columns = [np.full(count, updates.version, np.int32), *ids, reasons, retries]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=VALUES)


def from_arrow(batches: Iterable[pa.RecordBatch]) -> Iterator[RootUpdates]:
    """Yield what rows of VALUES say."""
    for batch in batches:
        versions, roots, values = (batch.column(name).to_numpy() for name in ("version", "root", "value"))
        failed = batch.filter(pc.is_valid(batch.column("reason")))
        yield from _by_version(versions, roots.view(np.uint64), values.view(np.uint64))
        roots = failed.column("root").to_numpy().view(np.uint64)
        reasons, retries = (failed.column(name).to_pylist() for name in ("reason", "retry_after_ms"))
        rows = failed.column("version").to_pylist(), roots.tolist(), map(RootFailure, reasons, retries)
        yield from _failed(zip(*rows, strict=True))
