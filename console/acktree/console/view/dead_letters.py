"""The dead letters of a topology, as their records and headers describe them.

Invariant: a record whose headers are not ours is listed with what is known of it; nothing in it is trusted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from confluent_kafka import Message as Record

from acktree.console.view.cluster import Cluster, OffsetRange, Place
from acktree.console.view.payloads import make_payload
from acktree.console.view.search import headers_of
from acktree.console.view.wire_format import NO_SCHEMAS, Schemas, schema_id_of
from acktree.schemas.errors import AcktreeError
from acktree.schemas.registry import Published

PREVIEW_BYTES = 200
MAX_DIGITS = 19
NEWEST = 1_000
"""So many dead letters the page reads."""
OWN_HEADERS = frozenset(
    f"acktree-{name}"
    for name in ("origin", "attempts", "cause", "task", "reason", "first-time-ms", "last-time-ms")
)
"""What the driver adds; other headers are those of the source record."""


class UnknownDeadLetter(AcktreeError):
    """The dead-letter topic has no such record, or its headers do not name a source record."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: its coordinates, its source record and its last failure."""

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


@dataclass(frozen=True, slots=True)
class NewestDeadLetters:
    """Dead letters, the newest first; ``has_older``: the topic holds more than were read."""

    dead_letters: tuple[DeadLetter, ...]
    has_older: bool
    spouts: tuple[str, ...]


def spouts_by_topic(published: Published) -> dict[str, str]:
    """Return the spout of each source topic."""
    return {slot.topic: slot.spout for slot in published.slots if slot.topic}


def read_newest(cluster: Cluster, limit: int) -> NewestDeadLetters:
    """Return the newest dead letters, at most ``limit``."""
    cluster.refresh()
    places = cluster.partitions([cluster.topology.dead_letter_topic])
    starts, ends = cluster.starts(places), cluster.ends(places)
    spans = {
        place: OffsetRange(max(starts[place], ends[place] - limit), ends[place])
        for place in places
        if place in ends
    }
    spouts = spouts_by_topic(cluster.topology)
    found = [dead_letter_of(record, spouts, cluster.schemas) for record in _records(cluster, spans)]
    found.sort(key=lambda each: (-each.time_ms, -each.offset))
    has_older = len(found) > limit or any(span.start > starts[place] for place, span in spans.items())
    return NewestDeadLetters(tuple(found[:limit]), has_older, tuple(cluster.topology.spouts))


def _records(cluster: Cluster, spans: dict[Place, OffsetRange]) -> Iterator[Record]:
    for batch in cluster.scan(spans):
        yield from batch


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
        raise UnknownDeadLetter(f"{topic}/{partition}/{offset} does not say which source record it is")
    return found


def dead_letter_of(record: Record, spouts: Mapping[str, str], schemas: Schemas = NO_SCHEMAS) -> DeadLetter:
    """Return what a record of the dead-letter topic says; ``spouts`` by source topic."""
    headers = {
        key: None if value is None else value.decode("utf-8", "replace") for key, value in headers_of(record)
    }
    texts = {name: text or "" for name, text in headers.items()}
    place, _, offset = texts.get("acktree-origin", "").rpartition("/")
    topic, _, partition = place.rpartition("/")
    source_partition, source_offset = _number(partition), _number(offset)
    is_ours = bool(topic) and source_partition is not None and source_offset is not None
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
        key=None if key is None else _preview(key, schemas),
        value=None if value is None else _preview(value, schemas),
        value_bytes=len(value or b""),
        headers={name: text for name, text in headers.items() if not name.startswith("kafka_dlt-")},
        spout=spouts.get(topic, "") if is_ours else "",
    )


def without_payload(found: DeadLetter) -> DeadLetter:
    """Return a dead letter without what its source record held: key, value and headers of its own."""
    ours = {name: text for name, text in found.headers.items() if name in OWN_HEADERS}
    return replace(found, key=None, value=None, headers=ours)


def _number(text: str) -> int | None:
    """Return a number as the driver writes it, None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _preview(raw: bytes | str, schemas: Schemas) -> str:
    if isinstance(raw, bytes) and schema_id_of(raw) is not None:
        shown = make_payload(raw, schemas)
        return f"[{shown.schema}] {' '.join(shown.text.split())}"[:PREVIEW_BYTES]
    text = raw if isinstance(raw, str) else raw[:PREVIEW_BYTES].decode("utf-8", "replace")
    return text[:PREVIEW_BYTES]
