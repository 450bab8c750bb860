"""Batches records on their way to a simulated broker, and finds out why it refuses a batch."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.log import Header, StoredRecord
from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.kafka.clients.message import SimulatedMessage

OnDelivery = Callable[[KafkaError | None, SimulatedMessage], object]
RECORD_OVERHEAD_BYTES = 70
"""Roughly what a batch of one record adds to key, value and headers."""


@dataclass(eq=False, slots=True)
class Queued:
    """A record on its way."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int | None
    on_delivery: OnDelivery | None
    queued_s: float

    def message(self, stored: StoredRecord | None, error: KafkaError | None) -> SimulatedMessage:
        """Return the message of the delivery report."""
        if stored is None:
            stored = StoredRecord(-1, 1, self.timestamp_ms or 0, self.key, self.value, self.headers)
        offset = None if error is not None else stored.offset
        return SimulatedMessage(self.topic, self.partition, offset, stored, error)


class Limits(NamedTuple):
    """The limits of a client: records in its queue, bytes of a record, bytes and records of a batch."""

    queued: int
    record_bytes: int
    batch_bytes: int
    batch_records: int

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Limits":
        """Return the limits of a client with these settings."""
        record_bytes = int(settings.get("message.max.bytes", 1_000_000))
        return cls(
            int(settings.get("queue.buffering.max.messages", 100_000)),
            record_bytes,
            min(record_bytes, int(settings.get("batch.size", 1_000_000))),
            int(settings.get("batch.num.messages", 10_000)),
        )

    def take_batch(self, queue: deque[Queued]) -> list[Queued]:
        """Take from the front of a queue what is sent together: at least one record."""
        taken = [queue.popleft()]
        size = size_of(taken[0].key, taken[0].value)
        while queue and len(taken) < self.batch_records:
            size += len(queue[0].key or b"") + len(queue[0].value or b"")
            if size > self.batch_bytes:
                break
            taken.append(queue.popleft())
        return taken


def refusals_of(cluster: Cluster, records: list[Queued]) -> list[KafkaError | None]:
    """Return why the broker refuses the records of a batch: one bad record is enough to refuse all."""
    try:
        config = cluster.log(records[0].topic, records[0].partition).topic.config
    except Refused as refusal:
        return [KafkaError(refusal.code)] * len(records)
    contents = [
        content for record in records for content in (record.key, record.value, *parts_of(record.headers))
    ]
    if size_of(*contents) > int(config["max.message.bytes"]):
        return [KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)] * len(records)
    bad = [record.key is None and "compact" in config["cleanup.policy"] for record in records]
    if not any(bad):
        return [None] * len(records)
    refused = KafkaError(KafkaError.INVALID_RECORD)
    other = KafkaError(KafkaError._INVALID_DIFFERENT_RECORD) if sum(bad) > 1 else refused
    return [refused if is_bad else other for is_bad in bad]


def size_of(*contents: bytes | None) -> int:
    """Return how large a batch of these keys, values and parts of headers is."""
    return RECORD_OVERHEAD_BYTES + sum(len(content or b"") for content in contents)


def parts_of(headers: Iterable[Header]) -> Iterator[bytes | None]:
    """Yield the names and values of headers."""
    for name, value in headers:
        yield name.encode()
        yield value


def as_bytes(value: bytes | str | None) -> bytes | None:
    """Return what a client sends for a key or value."""
    return value.encode() if isinstance(value, str) else None if value is None else bytes(value)


def as_headers(headers: Any) -> tuple[Header, ...]:
    """Return headers, given as pairs or as a dictionary."""
    items = headers.items() if isinstance(headers, dict) else headers or ()
    return tuple((name, as_bytes(value)) for name, value in items)
