"""Enforces the limits of a stage's topics: a row that a topic can never accept fails its own records only.

Invariant: no client and no broker refuses a row that passes here, neither for its size nor for a missing key,
and no batch is larger than the smallest limit: a broker refuses a batch as a whole. Limits are read once per
stage; if one is lowered later, the broker enforces it, and the query ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acktree.core.kafka.settings import Settings
from acktree.producers.errors import MissingKey, TooLarge, Unwritable
from acktree.producers.kafka.record_limits import BATCH_BYTES, FRAME_BYTES, Headers, payload_of, read_limits
from acktree.wire.header import HEADER

OWN_HEADER_BYTES = len(HEADER) + 16
"""Of the header that a row gets, beside what its anchors take."""


@dataclass(frozen=True, slots=True)
class RowLimit:
    """The largest payload (key, value, headers) in bytes that a topic accepts, and whether it needs a key."""

    topic: str
    payload_bytes: int
    is_compacted: bool

    def refused(self, batch: pa.RecordBatch) -> dict[int, Unwritable]:
        """Return why, by row, rows (value, anchors, optional key and headers) can never be written."""
        refused: dict[int, Unwritable] = {}
        sizes = _payload_bytes(batch)
        for row in np.flatnonzero(sizes > self.payload_bytes).tolist():
            refused[row] = TooLarge(
                f"a record of {sizes[row]} bytes is too large for topic {self.topic}, whose "
                f"max.message.bytes allows {self.payload_bytes}"
            )
        if self.is_compacted:
            for row in range(len(batch)) if "key" not in batch.schema.names else _nulls(batch.column("key")):
                refused.setdefault(row, self._missing_key())
        return refused

    def fits(self, value: bytes | str | None, key: bytes | str | None, headers: Headers) -> bool:
        """Return whether a record is not too large for the topic."""
        return payload_of([("", value), ("", key), *headers]) <= self.payload_bytes

    def _missing_key(self) -> MissingKey:
        return MissingKey(
            f"a record without a key is rejected by topic {self.topic}, which is compacted; give it one"
        )


@dataclass(frozen=True, slots=True)
class StageLimits:
    """The limit of each topic, and the producer's settings that go with them."""

    by_topic: Mapping[str, RowLimit] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)


def read_stage_limits(bootstrap: str, topics: Iterable[str], user: Settings) -> StageLimits:
    """Read the limits of topics; without the right to, librdkafka's defaults hold.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    names = tuple(topics)
    if not names:
        return StageLimits()
    limits = read_limits(bootstrap, names, user)
    largest = int(limits.settings["message.max.bytes"])
    if "message.max.bytes" in user:
        settings, largest = {}, largest - FRAME_BYTES
    else:
        settings = {"message.max.bytes": str(largest + FRAME_BYTES)}
    if (batch_bytes := int(limits.settings["batch.size"])) < BATCH_BYTES:
        settings["batch.size"] = str(batch_bytes)
    by_topic = {
        name: RowLimit(name, min(largest, limits.by_topic.get(name, largest)), name in limits.compacted)
        for name in names
    }
    return StageLimits(by_topic, settings)


def _payload_bytes(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    total = np.full(len(batch), OWN_HEADER_BYTES, np.int64)
    for name in ("value", "key", "anchors"):
        if name in batch.schema.names and _has_bytes(batch.column(name).type):
            total += pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy(zero_copy_only=False)
    if "headers" in batch.schema.names and batch.column("headers").null_count < len(batch):
        headers = (
            ((pair["key"], pair["value"]) for pair in each or ())
            for each in batch.column("headers").to_pylist()
        )
        total += np.fromiter(map(payload_of, headers), np.int64, len(batch))
    return total


def _has_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
    return any(test(kind) for test in tests)


def _nulls(column: pa.Array) -> list[int]:
    return np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False)).tolist()
