"""Reads the header of an input record as one bolt sees it: its anchors, none if untracked, or an error.

Invariant: a record whose header is malformed or names an unknown version is rejected as a whole; a bolt that
did not read the topic in the version of the emission owns no edge of the record, so it is untracked there.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from acktree.core.errors import UnknownVersion
from acktree.core.topology.registry import History
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.traces import about_record
from acktree.producers.tuples import Record
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import HEADER, SINGLE, decode_header, find_header, headers_of_all, read_headers
from acktree.wire.trace_context import has_context

_SINGLE_BYTES = SINGLE.itemsize
_HEAD_BYTES = 3
_VERSIONS_END = 5
_ROOT_END = 13
_NO_ROOT = b"\0" * 8

INVALID_LINES = 100
"""So many invalid records of a topic are logged one by one in an interval."""

LoadVersion = Callable[[int], None]

log = logging.getLogger("acktree.bolt")


class AnchorSource(Protocol):
    """Provides the anchors of an execution's records."""

    has_seen_traces: bool

    def single_anchors(self, records: Sequence[Record]) -> list[bytes] | None: ...

    def anchors_of(self, record: Record) -> bytes: ...


class Intake:
    """Reads tuple headers for one bolt, with a fast path for headers of one anchor and known versions."""

    def __init__(
        self, bolt: str, history: History, load_version: LoadVersion = lambda _version: None
    ) -> None:
        """``load_version`` is called for a version not seen yet, and may add it to the history."""
        self._bolt = bolt
        self._history = history
        self._load_version = load_version
        self._tracked: dict[str | None, dict[bytes, bool]] = {}
        self.has_seen_traces = False
        """Whether a record had a trace context: from then on what is emitted is asked for its parent's."""

    def single_anchors(self, records: Sequence[Record]) -> list[bytes] | None:
        """Return the anchors of a batch whose records are all tracked here, each in one tree, of one version.

        Return None for any other batch, which needs ``anchors_of`` for each record. This works on columns and
        costs a third of that.
        """
        if (found := headers_of_all(records)) is None:
            return None
        headers = [pairs[-1][1] for pairs in found if pairs and pairs[-1][0] == HEADER and pairs[-1][1]]
        if not self.has_seen_traces and sum(map(len, filter(None, found))) != len(headers):
            self.has_seen_traces = any(map(has_context, filter(None, found)))
        if len(headers) < len(found) or set(map(len, headers)) != {_SINGLE_BYTES}:
            return None
        packed = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _SINGLE_BYTES)
        if (packed[:, :_VERSIONS_END] != packed[0, :_VERSIONS_END]).any():
            return None
        if not packed.reshape(-1).view(SINGLE)["root"].all():
            return None
        for topic in {record.topic() for record in records}:
            if not self._tracked.get(topic, {}).get(headers[0][:_VERSIONS_END]):
                return None
        return [header[_HEAD_BYTES:] for header in headers]

    def anchors_of(self, record: Record) -> bytes:
        """Return the anchors in a record's header, 18 bytes each; empty if the record is untracked here.

        Raises:
            MalformedRecord: the header is malformed, or the record's headers cannot be read.
            UnknownVersion: it names a version that is not published.
        """
        # Life of an ack, step 1.
        headers = read_headers(record)
        if not headers:
            return b""
        header = headers[-1][1] if headers[-1][0] == HEADER else find_header(headers)
        if header is None:
            return b""
        topic = record.topic()
        known = self._tracked.get(topic) or self._tracked.setdefault(topic, {})
        tracked = known.get(header[:_VERSIONS_END])
        if tracked is None or len(header) != _SINGLE_BYTES or header[_VERSIONS_END:_ROOT_END] == _NO_ROOT:
            tracked = self._check(topic or "", header)
        return header[_HEAD_BYTES:] if tracked else b""

    def _check(self, topic: str, header: bytes) -> bool:
        """Decode a header fully, and return whether this bolt owns edges of it."""
        version, anchors = decode_header(header)
        for needed in {version, *(anchor.version for anchor in anchors)}:
            if needed not in self._history.versions:
                self._load_version(needed)
            self._history.at(needed)
        tracked = self._bolt in self._history.readers(version, topic).names
        if len(anchors) == 1:
            self._tracked[topic][header[:_VERSIONS_END]] = tracked
        return tracked


def read_anchors(
    records: Sequence[Record], intake: AnchorSource, collector: Collector
) -> tuple[Sequence[Record], list[bytes]]:
    """Return the records that are tuples, and the anchors of each; reject the others."""
    anchors = intake.single_anchors(records)
    if intake.has_seen_traces:
        collector.hands_on_traces = True
    if anchors is not None:
        return records, anchors
    taken, anchors = [], []
    for record in records:
        try:
            anchors.append(intake.anchors_of(record))
        except (MalformedRecord, UnknownVersion) as invalid:
            reject(record, invalid, collector)
        else:
            taken.append(record)
    return taken, anchors


def reject(record: Record, error: Exception, collector: Collector) -> None:
    """Skip a record that cannot be a tuple; its trees, if it has any, time out and are replayed."""
    collector.counters.invalid += 1
    if not collector.lines.counts(kind := (type(error), record.topic()), INVALID_LINES):
        text = f"record {record.topic()}[{record.partition()}]@{record.offset()} rejected: {error}"
        extra = about_record(record, "invalid_record")
        collector.lines.write_first(kind, logging.WARNING, text, extra)
