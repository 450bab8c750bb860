"""Reads single records by their coordinates.

Invariant: a record counts as gone only if the log holds one behind it, or begins or ends behind it. A
log that ends before it proves nothing: a new leader may lag.
"""

from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from acktree.core import world
from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, ask_bounds
from acktree.core.kafka.errors import clear_errors, was_damaged

MAX_GAP = 100
"""Records this close together are read in one go."""


def by_partition(places: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int], list[int]]:
    """Return offsets by topic and partition.

    >>> by_partition([("t", 0, 5), ("t", 1, 2), ("t", 0, 3)])
    {('t', 0): [5, 3], ('t', 1): [2]}
    """
    offsets: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in places:
        offsets.setdefault((topic, partition), []).append(offset)
    return offsets


def read_record(
    consumer: Consumer, place: TopicPartition, bootstrap: str, timeout_s: float | None = None
) -> Message | None:
    """Return the record at a place, None if it is no longer there; see ``read_records``."""
    partition = (place.topic, place.partition)
    return read_records(consumer, partition, [place.offset], bootstrap, timeout_s).get(place.offset)


def read_records(
    consumer: Consumer,
    partition: tuple[str, int],
    offsets: Iterable[int],
    bootstrap: str,
    timeout_s: float | None = None,
    damaged: set[int] | None = None,
) -> dict[int, Message]:
    """Return by offset those records of a partition that are still there.

    The consumer must report partition ends; its assignment is replaced. ``timeout_s`` is how long one record
    may take, by default BROKER_TIMEOUT_S. Offsets that nobody can read are added to ``damaged``.

    Raises:
        BrokerUnreachable, BrokerRefused: one could not be read, or the log ends before it, or it is damaged
            and there is no ``damaged``; nothing is known.
    """
    timeout_s = BROKER_TIMEOUT_S if timeout_s is None else timeout_s
    found: dict[int, Message] = {}
    wanted = sorted(set(offsets), reverse=True)
    position: int | None = None
    try:
        while wanted:
            first = wanted[-1]
            if position is None or first - position > MAX_GAP:
                consumer.assign([TopicPartition(*partition, first)])
            try:
                message = _read_from(consumer, TopicPartition(*partition, first), bootstrap, timeout_s)
            except BrokerRefused as error:
                if damaged is None or not was_damaged(error):
                    raise
                damaged.add(wanted.pop())
                position = None
                continue
            position = first if message is None else message.offset() or 0
            while wanted and wanted[-1] < position:
                wanted.pop()
            if message is None:
                wanted.pop()
                position = None
            elif wanted and wanted[-1] == position:
                found[wanted.pop()] = message
                position += 1
    finally:
        consumer.unassign()
    return found


def _read_from(consumer: Consumer, place: TopicPartition, bootstrap: str, timeout_s: float) -> Message | None:
    """Return the first record from a place on, None if what was at the place is gone and none has come."""
    deadline = world.monotonic_s() + timeout_s
    while world.monotonic_s() < deadline:
        message = consumer.poll(min(1.0, timeout_s))
        if message is None:
            continue
        if (error := message.error()) is None:
            if (message.offset() or 0) >= place.offset:
                return message
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            if _begins_behind(consumer, place, bootstrap):
                return None
            consumer.assign([place])
        elif error.code() == KafkaError._PARTITION_EOF:
            if (message.offset() or 0) > place.offset:
                return None
        elif not error.retriable():
            with clear_errors(bootstrap):
                raise KafkaException(error)
    raise BrokerUnreachable(
        f"{place.topic}/{place.partition}/{place.offset} could not be read in time, or lies beyond the end "
        "of the log"
    )


def _begins_behind(consumer: Consumer, place: TopicPartition, bootstrap: str) -> bool:
    with clear_errors(bootstrap):
        low, _ = ask_bounds(consumer, place)
    return low > place.offset
