"""Splits a polled batch by topic and partition; partition ends and errors are kept apart from records.

Invariant: within a slice the records are in offset order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from acktree.acker.folding.clock import UNKNOWN_MS
from acktree.core.kafka.errors import is_unreadable

Place = tuple[str, int]


@dataclass(slots=True)
class Slice:
    """The records of one topic's partition: values, offsets, and append times if the broker set them."""

    values: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    append_ms: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PolledBatch:
    """The slices of a batch, the partition ends reached (next offsets), unreadable partitions, and errors."""

    slices: dict[Place, Slice] = field(default_factory=dict)
    ends: dict[Place, int] = field(default_factory=dict)
    unreadable: set[Place] = field(default_factory=set)
    errors: list[KafkaError] = field(default_factory=list)


def slice_messages(messages: Iterable[Any]) -> PolledBatch:
    """Return the batch in messages as a consumer's ``consume`` gives them."""
    batch = PolledBatch()
    last_place, part = None, Slice()
    for message in messages:
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                batch.ends[message.topic(), message.partition()] = message.offset()
            elif is_unreadable(error):
                batch.unreadable.add((message.topic(), message.partition()))
            else:
                batch.errors.append(error)
            continue
        place = message.topic(), message.partition()
        if place != last_place:
            last_place, part = place, batch.slices.setdefault(place, Slice())
        kind, append_ms = message.timestamp()
        part.values.append(message.value() or b"")
        part.offsets.append(message.offset())
        part.append_ms.append(append_ms if kind == TIMESTAMP_LOG_APPEND_TIME else UNKNOWN_MS)
    return batch
