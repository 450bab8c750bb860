"""Reads the anchors of the tuples that a bolt in Spark reads, for the column ``anchors``.

Invariant: a tuple is tracked only if this bolt was a reader in the version the tuple was emitted in; a
broken header is logged with its coordinates, and its tuple is untracked.
"""

import logging

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from acktree.core.errors import UnknownVersion
from acktree.core.kafka.settings import Settings
from acktree.core.topology.registry import History, read_history
from acktree.spark.shared.per_process import PerProcess
from acktree.spark.tasks.binary_rows import binary_of, rows_of
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import FORMAT, SINGLE, decode_header

HEAD_BYTES = 3

log = logging.getLogger("acktree.spark")


class BoltAnchors:
    """Checks headers against the registry, which is read again for an unknown version."""

    def __init__(self, bootstrap: str, topology: str, bolt: str, user: Settings) -> None:
        self._place = (bootstrap, topology, user)
        self._bolt = bolt
        self._history: History = read_history(*self._place)
        self._may_ask = True

    def of_all(self, headers: pa.Array, topic: str, partition: int, offsets: NDArray[np.int64]) -> pa.Array:
        """Return the anchors of tuples, 18 bytes each; null where one is not tracked for this bolt."""
        rows = rows_of(headers, SINGLE)
        if rows is not None and (rows["format"] == FORMAT).all() and rows["root"].all():
            version = int(rows["emission"][0])
            if (rows["emission"] == version).all() and version in self._history.versions:
                if self._bolt not in self._history.at(version).readers_of(topic):
                    return pa.nulls(len(rows), pa.binary())
                return binary_of(rows.view(np.uint8).reshape(len(rows), -1)[:, HEAD_BYTES:])
        rows_in = zip(headers.to_pylist(), offsets.tolist(), strict=True)
        self._may_ask = True
        return pa.array(
            [self._anchors_at(data, topic, partition, offset) for data, offset in rows_in], pa.binary()
        )

    def _anchors_at(self, data: bytes | None, topic: str, partition: int, offset: int) -> bytes | None:
        if data is None or len(data) <= HEAD_BYTES:
            return None
        try:
            version = decode_header(data).version
            if version not in self._history.versions and self._may_ask:
                self._history = read_history(*self._place)
                self._may_ask = False  # whatever a record here was emitted in was published before
            is_reader = self._bolt in self._history.at(version).readers_of(topic)
        except (MalformedRecord, UnknownVersion) as reason:
            place = f"{topic}/{partition}/{offset}"
            log.warning("%s is untracked: %s", place, reason, extra={"action": "invalid_record"})
            return None
        return data[HEAD_BYTES:] if is_reader else None


_kept: PerProcess[BoltAnchors] = PerProcess()


def bolt_anchors(bootstrap: str, topology: str, bolt: str, user: Settings) -> BoltAnchors:
    """Return this process's reader of a bolt's anchors."""
    return _kept.get(lambda: BoltAnchors(bootstrap, topology, bolt, user), bootstrap, topology, bolt, user)
