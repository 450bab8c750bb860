"""Reads the dead letters of a topology, as their records and headers describe them.

Invariant: a record with foreign headers is listed with what is known of it; nothing in it is trusted.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from confluent_kafka import Message as Record

from acktree.console.view.cluster import Cluster, OffsetRange, Place, what_is_unread
from acktree.console.view.records.payloads import make_payload
from acktree.console.view.records.tree_reader import headers_of
from acktree.console.view.wire_format import NO_SCHEMAS, Schemas, schema_id_of
from acktree.core.kafka.log_reader import Found
from acktree.core.topology.registry import Published
from acktree.wire.dead_letter import (
    CLOSES,
    CORRECTED_AS,
    CORRECTS,
    FAILED_TUPLE,
    FAILED_VALUE,
    FAILED_VALUE_NOTE,
    LEFT_OUT,
    ORIGIN,
    OWN_HEADERS,
    SPOUT,
    STACK,
)
from acktree.wire.errors import AcktreeError

PREVIEW_BYTES = 200
MAX_HEADER_BYTES = 20_000
MAX_HEADERS = 200
"""How much of a header, and how many of them, are shown; acktree writes less."""
MAX_DIGITS = 19
NEWEST = 1_000
"""How many dead letters the page reads."""


NO_HEADERS: dict[str, str | None] = {}


class UnknownDeadLetter(AcktreeError):
    """The dead-letter topic has no such record, or its headers do not name a source record."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: its coordinates, its source record and its last failure.

    ``failed_tuple`` is TOPIC/PARTITION/OFFSET of the tuple that failed; ``failed_value_note`` says what of
    its value is missing. ``corrects`` is the record that its source record has replaced, ``corrected_as`` the
    one that has replaced it: then it is closed. All of them are "" if unknown.
    """

    partition: int
    offset: int
    time_ms: int
    topic: str
    source_partition: int
    source_offset: int
    attempts: int | None
    cause: str
    task: str
    reason: str
    key: str | None
    value: str | None
    value_bytes: int
    headers: dict[str, str | None]
    spout: str = ""
    message_id: str | None = None
    """Of a tuple of a Python spout, which has no source record; None for a source record."""
    failed_tuple: str = ""
    failed_value: str | None = None
    failed_value_note: str = ""
    stack: str = ""
    corrects: str = ""
    corrected_as: str = ""

    @property
    def name(self) -> str:
        """How a dead letter is named: PARTITION/OFFSET of the dead-letter topic."""
        return f"{self.partition}/{self.offset}"

    @property
    def left_out(self) -> str:
        """Why it holds neither key, value nor headers of its source record, "" if it does."""
        return self.headers.get(LEFT_OUT) or ""

    @property
    def source(self) -> str:
        """TOPIC/PARTITION/OFFSET of the source record, "" if it is not said."""
        return f"{self.topic}/{self.source_partition}/{self.source_offset}" if self.topic else ""


@dataclass(frozen=True, slots=True)
class NewestDeadLetters:
    """Dead letters, the newest first; ``has_older``: the topic holds more than were read.

    ``unread`` says in sentences what could not be read.
    """

    dead_letters: tuple[DeadLetter, ...]
    has_older: bool
    spouts: tuple[str, ...]
    unread: tuple[str, ...] = ()


def spouts_by_topic(published: Published) -> dict[str, str]:
    """Return the spout of each source topic."""
    return {slot.topic: slot.spout for slot in published.slots if slot.topic}


def read_newest(cluster: Cluster, limit: int) -> NewestDeadLetters:
    """Return the newest dead letters, at most ``limit``.

    Raises:
        BrokerUnreachable: see ``Cluster.scan``.
    """
    found: list[DeadLetter] = []
    scanned = scan_newest(cluster, limit, found.append)
    found.sort(key=lambda each: (-each.time_ms, -each.offset))
    newest = (replace(each, corrected_as=scanned.closed.get(each.name, "")) for each in found[:limit])
    has_older = len(found) > limit or scanned.has_older
    return NewestDeadLetters(tuple(newest), has_older, tuple(cluster.topology.spouts), scanned.unread)


class Scanned(NamedTuple):
    """The result of a scan: how many were read, if there are older ones, what closes them, what is unread."""

    read: int
    has_older: bool
    closed: Mapping[str, str]
    unread: tuple[str, ...] = ()


def scan_newest(cluster: Cluster, limit: int, add: Callable[[DeadLetter], object]) -> Scanned:
    """Give the newest dead letters, at least ``limit`` of each partition if it has them, to a function.

    They come in no order, and without what closes them. None of them is kept.
    """
    cluster.refresh()
    places = cluster.partitions([cluster.topology.dead_letter_topic])
    starts, ends = cluster.starts(places), cluster.ends(places)
    spouts = spouts_by_topic(cluster.topology)
    begins, counts = {place: ends[place] for place in starts if place in ends}, Counter[int]()
    closed: dict[str, str] = {}
    sentences: list[str] = []
    size = limit
    # Not every offset holds a dead letter: read back until there are enough, or the log begins.
    while unread := {
        place: OffsetRange(max(starts[place], begin - size), begin)
        for place, begin in begins.items()
        if counts[place[1]] < limit and starts[place] < begin
    }:
        for record in _records(cluster, unread, sentences):
            if closed_name(record):
                closed |= closed_by([record])
            else:
                counts[record.partition() or 0] += 1
                add(dead_letter_of(record, spouts, cluster.schemas))
        begins |= {place: span.start for place, span in unread.items()}
        size *= 2
    has_older = any(begin > starts[place] for place, begin in begins.items())
    return Scanned(counts.total(), has_older, closed, tuple(sentences))


def closed_name(record: Record) -> str:
    """Return the name of the dead letter that a record closes, "" if it is a dead letter itself.

    A source record may bring the header that closes one, from whatever it was copied from: its dead letter
    says what record it is, which nothing that closes one does.
    """
    headers = dict(headers_of(record))
    if ORIGIN in headers or SPOUT in headers:
        return ""
    return (headers.get(CLOSES) or b"").decode("utf-8", "replace")


def closed_by(records: Iterable[Record]) -> dict[str, str]:
    """Return by name of a closed dead letter the record that has replaced its own one."""
    found = {}
    for record in records:
        if name := closed_name(record):
            found[name] = (dict(headers_of(record)).get(CORRECTED_AS) or b"").decode("utf-8", "replace")
    return found


def _records(cluster: Cluster, spans: dict[Place, OffsetRange], unread: list[str]) -> Iterator[Record]:
    """Yield what can be read; add to ``unread`` what cannot."""
    for log_range in cluster.scan(spans, whole=True):
        if log_range.found is not Found.READ:
            unread.append(what_is_unread(log_range))
        yield from log_range.records


def read_dead_letter(cluster: Cluster, partition: int, offset: int) -> DeadLetter:
    """Return one dead letter that names its source record. Raises UnknownDeadLetter."""
    topic = cluster.topology.dead_letter_topic
    record = cluster.record(topic, partition, offset)
    if record is None:
        raise UnknownDeadLetter(
            f"{topic}/{partition} holds no record at offset {offset}; see: acktree dead-letter list"
        )
    found = dead_letter_of(record, spouts_by_topic(cluster.topology), cluster.schemas)
    if not found.topic:
        raise UnknownDeadLetter(f"{topic}/{partition}/{offset} {why_without_source(found)}")
    return replace(found, corrected_as=find_closing(cluster, found))


def find_closing(cluster: Cluster, found: DeadLetter) -> str:
    """Return the record that has replaced that of a dead letter, "" if it is open; it is closed later on.

    What is damaged in the log is taken for what closes no dead letter.
    """
    topic = cluster.topology.dead_letter_topic
    places = cluster.partitions([topic])
    ends = cluster.ends(places)
    after = found.offset + 1
    spans = {
        place: OffsetRange(after if place[1] == found.partition else ends[place], ends[place])
        for place in places
    }
    return closed_by(_records(cluster, spans, [])).get(found.name, "")


def why_without_source(found: DeadLetter) -> str:
    """Return in words why a dead letter has no source record that could be traced or replayed."""
    if found.message_id is None:
        return "does not name its source record, so it cannot be replayed"
    return (
        f"is message {found.message_id} of spout {found.spout}, which is fed by Python code, so there is no "
        "source record to trace or replay; send what acktree dead-letter show prints to its source again"
    )


def dead_letter_of(record: Record, spouts: Mapping[str, str], schemas: Schemas = NO_SCHEMAS) -> DeadLetter:
    """Return what a record of the dead-letter topic says; ``spouts`` by source topic."""
    headers = {
        key: None if value is None else value[:MAX_HEADER_BYTES].decode("utf-8", "replace")
        for key, value in headers_of(record)
    }
    texts = {name: text or "" for name, text in headers.items()}
    place, _, offset = texts.get(ORIGIN, "").rpartition("/")
    topic, _, partition = place.rpartition("/")
    source_partition, source_offset = _number(partition), _number(offset)
    failed_value = dict(headers_of(record)).get(FAILED_VALUE)
    named = [name for name, _ in headers_of(record) if name in (ORIGIN, SPOUT)]
    is_message = bool(named) and named[-1] == SPOUT
    is_ours = not is_message and bool(topic) and source_partition is not None and source_offset is not None
    value = record.value()
    key = record.key()
    return DeadLetter(
        partition=record.partition() or 0,
        offset=record.offset() or 0,
        time_ms=record.timestamp()[1],
        topic=topic if is_ours else "",
        source_partition=-1 if source_partition is None or not is_ours else source_partition,
        source_offset=-1 if source_offset is None or not is_ours else source_offset,
        attempts=_number(texts.get("acktree-attempts", "")),
        cause=texts.get("acktree-cause", ""),
        task=texts.get("acktree-task", ""),
        reason=texts.get("acktree-reason", ""),
        key=None if key is None else preview_of(key, schemas),
        value=None if value is None else preview_of(value, schemas),
        value_bytes=len(value or b""),
        headers={
            name: text
            for name, text in list(headers.items())[-MAX_HEADERS:]
            if not name.startswith("kafka_dlt-") and name != FAILED_VALUE
        },
        spout=texts[SPOUT] if is_message else spouts.get(topic, "") if is_ours else "",
        message_id=texts.get("acktree-message-id", "") if is_message else None,
        failed_tuple=texts.get(FAILED_TUPLE, ""),
        failed_value=None if failed_value is None else failed_value.decode("utf-8", "replace"),
        failed_value_note=texts.get(FAILED_VALUE_NOTE, ""),
        stack=texts.get(STACK, ""),
        corrects=texts.get(CORRECTS, ""),
    )


def without_content(found: DeadLetter) -> DeadLetter:
    """Return what of a dead letter a replay's plan needs, in little memory: equal texts are one."""
    return replace(
        found,
        topic=sys.intern(found.topic),
        spout=sys.intern(found.spout),
        cause=sys.intern(found.cause),
        reason=sys.intern(found.reason),
        task="",
        failed_tuple="",
        failed_value_note="",
        stack="",
        headers=NO_HEADERS,
        key=None,
        value=None,
        failed_value=None,
    )


def without_payload(found: DeadLetter) -> DeadLetter:
    """Return a dead letter without what records held: key, values and their own headers."""
    ours = {name: text for name, text in found.headers.items() if name in OWN_HEADERS}
    return replace(found, key=None, value=None, failed_value=None, headers=ours)


def _number(text: str) -> int | None:
    """Return a number as the driver writes it, None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def preview_of(raw: bytes | str, schemas: Schemas = NO_SCHEMAS) -> str:
    """Return the beginning of a key or a value as text."""
    if isinstance(raw, bytes) and schema_id_of(raw) is not None:
        shown = make_payload(raw, schemas)
        return f"[{shown.schema}] {' '.join(shown.text.split())}"[:PREVIEW_BYTES]
    text = raw if isinstance(raw, str) else raw[:PREVIEW_BYTES].decode("utf-8", "replace")
    return text[:PREVIEW_BYTES]
