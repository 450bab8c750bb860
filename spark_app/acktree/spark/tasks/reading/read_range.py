"""Reads the records of a range of one partition up to its end, by one consumer for many ranges.

Invariant: a range ends only when its records have been read up to its end; missing offsets (compaction,
transaction markers) are proven absent by reading past them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from confluent_kafka import KafkaError, TopicPartition
from numpy.typing import NDArray

from acktree.core import world
from acktree.core.kafka.errors import as_clear_error, clear_errors, is_damaged, truncated_end
from acktree.core.kafka.unreadable import next_readable
from acktree.producers.ledger.partitions.blocks import block_firsts
from acktree.producers.spouts.driver.sources.log_bounds import (
    OffsetOutOfRange,
    check_fetched,
    log_damaged,
    next_available,
)
from acktree.spark.shared.options import SourceOptions
from acktree.spark.tasks.reading.fetching import Fetched, Fetching, Place, fetching
from acktree.wire.control_records import Span
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import IdArray, root_ids

MAX_ROWS = 10_000
STALL_S = 60.0
SMALL_BATCH = 2_000
MAX_ASSIGNED = 16
"""Partitions that are fetched at a time: each may have its queue full of records behind its range."""


class ReadStalled(AcktreeError):
    """The broker delivered nothing for STALL_S seconds before the end of the range."""


@dataclass(frozen=True)
class ReadRange:
    """Offsets [start, end) of one partition, all of them or only ``only``.

    ``anchored``: rows are roots (of a spout) or carry their tuple's anchors (to a bolt); not if tracking is
    off. Offsets share roots by blocks, cut at start and at multiples of ``block``. ``result_topic`` is where
    a spout's ledger reads of absent offsets.
    """

    options: SourceOptions
    topic: str
    partition: int
    slot: int
    generation: int
    version: int
    anchored: bool
    result_topic: str | None
    start: int
    end: int
    only: tuple[int, ...] | None = None
    block: int = 1

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    def roots(self, offsets: NDArray[np.int64]) -> IdArray:
        """Return the root of each offset: that of its block."""
        return root_ids(self.slot, self.generation, self.firsts_of(offsets))

    def firsts_of(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first offset of each offset's block."""
        return block_firsts(offsets, self.start, self.block) if self.block > 1 else offsets


def read_records(ranges: Sequence[ReadRange]) -> Iterator[tuple[ReadRange, Iterator[Fetched], list[Span]]]:
    """Yield the ranges of a task with their records, which must be read to their end before the next range.

    The spans are those of records that are lost, known when the others have been read. One consumer fetches
    up to MAX_ASSIGNED small ranges at a time, or a single large one.
    """
    for together in _assignable(ranges):
        source = fetching(together[0].options)
        known, source.position = source.position, None
        if [known] != [(range_.place, range_.start) for range_ in together]:
            source.assign({range_.place: (range_.start, range_.end) for range_ in together})
        for range_ in together:
            lost: list[Span] = []
            yield range_, _records(source, range_, lost), lost


def _assignable(ranges: Sequence[ReadRange]) -> Iterator[list[ReadRange]]:
    """Yield large ranges alone, and small ones in groups in which each partition comes once."""
    by_place: dict[Place, list[ReadRange]] = {}
    for range_ in ranges:
        if range_.end - range_.start > SMALL_BATCH:
            yield [range_]
        else:
            by_place.setdefault(range_.place, []).append(range_)
    for group in zip_longest(*by_place.values()):
        there = [range_ for range_ in group if range_ is not None]
        for at in range(0, len(there), MAX_ASSIGNED):
            yield there[at : at + MAX_ASSIGNED]


def _records(source: Fetching, range_: ReadRange, lost: list[Span]) -> Iterator[Fetched]:
    place, position, last_progress_s = range_.place, range_.start, world.monotonic_s()
    while position < range_.end:
        fetched = source.fetch(place, min(MAX_ROWS, range_.end - position), 1.0)
        if len(fetched.offsets):
            position = int(fetched.offsets[-1]) + 1
        for error, offset in fetched.errors:
            if error.code() == KafkaError._PARTITION_EOF:
                position = max(position, offset)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                _check_truncated(range_, error, position)
                position = _pass(_go_on(range_, source, position), position, lost)
            elif is_damaged(error):
                position = _pass(_pass_damaged(range_, source, position), position, lost)
            elif not error.retriable():
                raise as_clear_error(error, range_.options.bootstrap)
        if len(fetched.offsets) or fetched.errors:
            last_progress_s = world.monotonic_s()
        if (rows := fetched.where(fetched.offsets < range_.end)).offsets.size:
            yield rows
        if world.monotonic_s() - last_progress_s > STALL_S:
            following = _go_on(range_, source, position)
            if following == position:
                raise ReadStalled(
                    f"{range_.topic}/{range_.partition} delivered nothing from offset {position} "
                    f"(of {range_.start} to {range_.end}) for {STALL_S:g} s"
                )
            position = _pass(following, position, lost)
    is_large = range_.end - range_.start > SMALL_BATCH
    if is_large and position == range_.end and source.is_ahead_of(place, position):
        source.position = place, position
    else:
        source.release(place)


def _pass(following: int, position: int, lost: list[Span]) -> int:
    """Return where reading continues; what is between is lost, unless it is done already."""
    if following > position:
        lost.append(Span(position, following))
    return following


def _pass_damaged(range_: ReadRange, source: Fetching, position: int) -> int:
    """Continue behind records that nobody can read; what they led to is emitted again, or was never emitted.

    Raises:
        OffsetOutOfRange: they are those of a spout's source, and failOnDataLoss is true.
    """
    options = range_.options
    with clear_errors(options.bootstrap, f"{range_.topic}/{range_.partition}"):
        found = next_readable(options.bootstrap, options.kafka, options.group, *range_.place, position)
    following = min(max(found, position), range_.end)
    if following > position:
        if options.spout and options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{range_.topic}/{range_.partition}: offsets {position} to {following - 1} are damaged in "
                "the log and cannot be read. To skip them and count them as done, start with "
                f"failOnDataLoss=false; to continue elsewhere, set the offset of group {options.group} with "
                "kafka-consumer-groups"
            )
        log_damaged(range_.place, position, following)
    source.move(range_.place, following, range_.end)
    return following


def _check_truncated(range_: ReadRange, error: KafkaError, position: int) -> None:
    """Refuse to go on where a new leader has written other records in place of those that were read.

    Raises:
        DataLoss: they are those of a spout's source, and failOnDataLoss is true.
    """
    end = truncated_end(error)
    if range_.options.spout and end is not None and end < position:
        check_fetched(range_.options, range_.place, end, position)


def _go_on(range_: ReadRange, source: Fetching, position: int) -> int:
    at = TopicPartition(*range_.place, position)
    following = next_available(source.consumer, at, range_.end, range_.options)
    source.move(range_.place, following, range_.end)
    return following
