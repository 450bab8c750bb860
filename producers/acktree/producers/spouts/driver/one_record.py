"""Reads single records by their coordinates.

Invariant: a record counts as gone only if the log holds one behind it, or begins or ends behind it. A
log that ends before it proves nothing: a new leader may lag. Of large records few are returned together.
"""

from collections.abc import Iterable

from confluent_kafka import Message

from acktree.core import world
from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.core.kafka.errors import as_clear_error
from acktree.core.kafka.log_reader import Found, LogReader, Place
from acktree.producers.tuples import size_of

MAX_BYTES = 16 << 20
"""With so many bytes, or one record, a call has enough."""
MAX_GAP = 1_000
"""Records this close together are read in one go."""
WAIT_S = 1.0


def by_partition(places: Iterable[tuple[str, int, int]]) -> dict[Place, list[int]]:
    """Return offsets by topic and partition.

    >>> by_partition([("t", 0, 5), ("t", 1, 2), ("t", 0, 3)])
    {('t', 0): [5, 3], ('t', 1): [2]}
    """
    offsets: dict[Place, list[int]] = {}
    for topic, partition, offset in places:
        offsets.setdefault((topic, partition), []).append(offset)
    return offsets


def read_records(
    log: LogReader,
    partition: Place,
    offsets: Iterable[int],
    bootstrap: str,
    timeout_s: float | None = None,
    damaged: set[int] | None = None,
    max_bytes: int = MAX_BYTES,
) -> tuple[dict[int, Message], list[int]]:
    """Return by offset those records of a partition that are still there, and which offsets are left.

    At ``max_bytes`` the highest offsets are left, in order, for another call. ``log`` reads nothing else
    meanwhile. ``timeout_s`` is how long one record may take, by default BROKER_TIMEOUT_S. Offsets that nobody
    can read are added to ``damaged``.

    Raises:
        BrokerUnreachable, BrokerRefused: one could not be read, or the log ends before it, or it is damaged
            and there is no ``damaged``; nothing is known.
    """
    timeout_s = BROKER_TIMEOUT_S if timeout_s is None else timeout_s
    found: dict[int, Message] = {}
    size = 0
    wanted = sorted(set(offsets), reverse=True)
    deadline_s = world.monotonic_s() + timeout_s
    try:
        while wanted and size < max_bytes:
            if partition not in log.places or wanted[-1] - log.next_offset(partition) > MAX_GAP:
                log.begin({partition: wanted[-1]})
            if world.monotonic_s() >= deadline_s:
                raise _beyond(partition, wanted[-1])
            for _, kind, start, end, records, error in log.read(MAX_GAP, min(WAIT_S, timeout_s)):
                if not wanted or size >= max_bytes:
                    break  # enough was found in front of it
                if kind is Found.GONE:
                    raise as_clear_error(error, bootstrap, "/".join(map(str, partition)))
                if kind is Found.FELL:
                    raise _beyond(partition, wanted[-1])
                deadline_s = world.monotonic_s() + timeout_s
                there = {message.offset() or 0: message for message in records}
                while wanted and wanted[-1] < end and size < max_bytes:
                    offset = wanted.pop()
                    if offset in there:
                        found[offset] = there[offset]
                        size += size_of(there[offset])
                    elif kind is Found.DAMAGED and damaged is None:
                        raise BrokerRefused(
                            f"{partition[0]}/{partition[1]}: offsets {start} to {end - 1} are damaged in the "
                            "log and cannot be read"
                        )
                    elif kind is Found.DAMAGED and damaged is not None:
                        damaged.add(offset)
    finally:
        if partition in log.places:
            log.end([partition])
    return found, wanted[::-1]


def _beyond(partition: Place, offset: int) -> BrokerUnreachable:
    return BrokerUnreachable(
        f"{partition[0]}/{partition[1]}/{offset} could not be read in time, or lies beyond the end of the log"
    )
