"""The dead letters of a topology, as their records and headers describe them.

Invariant: a record whose headers are not ours is listed with what is known of it; nothing in it is trusted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Message as Record

from acktree.console.view.cluster import Cluster, OffsetRange, Place
from acktree.console.view.search import headers_of
from acktree.schemas.errors import AcktreeError

PREVIEW_BYTES = 200


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


def read_dead_letters(cluster: Cluster, limit: int) -> list[DeadLetter]:
    """Return the newest dead letters, at most ``limit`` of each partition, the newest first."""
    places = cluster.partitions([cluster.topology.dead_letter_topic])
    starts, ends = cluster.starts(places), cluster.ends(places)
    spans = {
        place: OffsetRange(max(starts[place], ends[place] - limit), ends[place])
        for place in places
        if place in ends
    }
    found = [dead_letter_of(record) for record in _records(cluster, spans)]
    return sorted(found, key=lambda letter: (-letter.time_ms, -letter.offset))[:limit]


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
    letter = dead_letter_of(record)
    if not letter.topic:
        raise UnknownDeadLetter(f"{topic}/{partition}/{offset} does not say which source record it is")
    return letter


def dead_letter_of(record: Record) -> DeadLetter:
    """Return what a record of the dead-letter topic says."""
    headers = {
        key: None if value is None else value.decode("utf-8", "replace") for key, value in headers_of(record)
    }
    texts = {name: text or "" for name, text in headers.items()}
    place, _, offset = texts.get("acktree-origin", "").rpartition("/")
    topic, _, partition = place.rpartition("/")
    is_ours = bool(topic) and partition.isdigit() and offset.isdigit()
    attempts = texts.get("acktree-attempts", "")
    value = record.value()
    key = record.key()
    return DeadLetter(
        partition=record.partition() or 0,
        offset=record.offset() or 0,
        time_ms=record.timestamp()[1],
        topic=topic if is_ours else "",
        source_partition=int(partition) if is_ours else -1,
        source_offset=int(offset) if is_ours else -1,
        attempts=int(attempts) if attempts.isdigit() else None,
        cause=texts.get("acktree-cause", ""),
        task=texts.get("acktree-task", ""),
        reason=texts.get("acktree-reason", ""),
        key=None if key is None else _preview(key),
        value=None if value is None else _preview(value),
        value_bytes=len(value or b""),
        headers={name: text for name, text in headers.items() if not name.startswith("kafka_dlt-")},
    )


def _preview(raw: bytes | str) -> str:
    text = raw if isinstance(raw, str) else raw[:PREVIEW_BYTES].decode("utf-8", "replace")
    return text[:PREVIEW_BYTES]
