"""Reads partitions outside of a group, and says of each offset what it holds, in order.

Invariant: the ranges of a partition follow each other without a gap, from where it was begun. After a log
has fallen, or is gone, nothing more comes of its partition until it is begun again: what was fetched says
nothing about what is written there now. One partition's trouble holds up no other one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import consume_ready
from acktree.core.kafka.errors import (
    as_clear_error,
    is_damaged,
    is_missing,
    is_transient,
    is_unreadable,
)
from acktree.core.kafka.settings import Settings, consumer_settings
from acktree.core.kafka.unreadable import find_continuation
from acktree.wire.errors import AcktreeError

Place = tuple[str, int]
"""Topic and partition."""

LAG_S = 2.0
"""For so long a log that ends in front of a position may be that of a new leader that lags behind."""
LOOK_S = 1.0
"""How long a broker may take to say where a log begins and ends."""
AGAIN_AFTER_S = 0.2
"""When a partition is tried again that could not be read for a reason that passes."""


class Found(Enum):
    """What a range of a log is."""

    READ = auto()
    """Its records are all that there are: the other offsets hold none."""
    REMOVED = auto()
    """The log begins behind it: retention, or somebody, has removed what was there."""
    DAMAGED = auto()
    """Nobody can read it: its checksum is wrong, or its format is unknown."""
    FELL = auto()
    """The log ends at its start, although there were records up to its end."""
    GONE = auto()
    """It does not exist, as the broker says; ``error`` is its answer."""


class LogRange(NamedTuple):
    """The offsets [start, end) of a partition."""

    place: Place
    found: Found
    start: int
    end: int
    records: Sequence[Message] = ()
    error: KafkaError | None = None


@dataclass(slots=True)
class _Position:
    next_offset: int
    is_paused: bool = False
    is_at_end: bool = False
    """Whether the log had nothing more when it was looked at last."""
    beyond_since_s: float | None = None
    """Since when the log has ended in front of it."""
    again_s: float | None = None
    """When it is tried again; None: it is assigned."""


def reader_settings(bootstrap: str, group: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a LogReader's consumer; raises as ``consumer_settings``."""
    return consumer_settings(
        bootstrap, group, user, auto_offset_reset="error", enable_partition_eof=True, **ours
    )


class LogReader:
    """The partitions that it was told to begin, through one consumer."""

    def __init__(self, consumer: Consumer, bootstrap: str, group: str, user: Settings) -> None:
        """Use a consumer with ``reader_settings``, which nobody else assigns or polls."""
        self._consumer = consumer
        self._bootstrap, self._group, self._user = bootstrap, group, user
        self._positions: dict[Place, _Position] = {}
        self._refused: AcktreeError | None = None

    def begin(self, starts: Mapping[Place, int]) -> None:
        """Read partitions from these offsets on; what was fetched of them does not count any more."""
        self.end([place for place in starts if place in self._positions])
        self._consumer.incremental_assign([TopicPartition(*place, at) for place, at in starts.items()])
        self._positions |= {place: _Position(at) for place, at in starts.items()}

    def end(self, places: Collection[Place]) -> None:
        """Read partitions no more."""
        self._unassign([place for place in places if self._positions[place].again_s is None])
        for place in places:
            del self._positions[place]

    def _unassign(self, places: Collection[Place]) -> None:
        self.resume(places)  # or the client keeps them paused when they are assigned again
        if places:
            self._consumer.incremental_unassign([TopicPartition(*place) for place in places])

    def next_offset(self, place: Place) -> int:
        """Return where a partition continues."""
        return self._positions[place].next_offset

    def is_at_end(self, place: Place) -> bool:
        """Return whether a log had nothing more behind what was returned of it, when that was fetched."""
        position = self._positions.get(place)
        return position is not None and position.is_at_end

    def pause(self, places: Collection[Place]) -> None:
        """Fetch nothing more of partitions for now."""
        self._switch([place for place in places if not self._positions[place].is_paused], True)

    def resume(self, places: Collection[Place]) -> None:
        """Fetch partitions again that are paused."""
        self._switch([place for place in places if self._positions[place].is_paused], False)

    def _switch(self, places: Collection[Place], is_paused: bool) -> None:
        assigned = [TopicPartition(*place) for place in places if self._positions[place].again_s is None]
        if assigned:
            switch = self._consumer.pause if is_paused else self._consumer.resume
            switch(assigned)
        for each in assigned:
            self._positions[each.topic, each.partition].is_paused = is_paused

    def read(self, max_records: int, wait_s: float) -> list[LogRange]:
        """Return what has come, or what comes first within ``wait_s``.

        Raises:
            BrokerRefused, NotAuthorized: something can be read no more, for a reason that does not pass. What
                had come by then was returned by the call before.
        """
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        self._try_again()
        records: dict[Place, list[Message]] = {}
        unreadable: dict[Place, KafkaError] = {}
        ends: dict[Place, int] = {}
        for message in consume_ready(self._consumer, max_records, wait_s):
            place = message.topic() or "", message.partition() or 0
            offset, error = message.offset() or 0, message.error()
            position = self._positions.get(place)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if position is not None and (is_missing(error) or is_unreadable(error)):
                    unreadable.setdefault(place, error)
                elif (position is not None or not place[0]) and not is_transient(error):
                    self._refuse(place, error)
            elif position is None or place in unreadable:
                continue  # it is begun again, at its position
            elif error is None and offset >= position.next_offset:
                records.setdefault(place, []).append(message)
                ends[place] = max(ends.get(place, 0), offset + 1)
                position.is_at_end = False
            elif error is not None:
                ends[place] = max(ends.get(place, 0), offset)
                position.is_at_end = True
        ranges: list[LogRange] = []
        for place, end in ends.items():
            position = self._positions[place]
            position.beyond_since_s = None
            if end > position.next_offset:
                read = records.get(place, ())
                ranges.append(LogRange(place, Found.READ, position.next_offset, end, read))
                position.next_offset = end
        for place, error in unreadable.items():
            ranges += self._look(place, error)
        if self._refused is not None and not ranges:
            return self.read(0, 0.0)  # which raises it
        return ranges

    def _look(self, place: Place, error: KafkaError) -> list[LogRange]:
        """Return what an error says about the offsets at a position, and go on behind them."""
        position = self._positions[place]
        at = position.next_offset
        if is_missing(error):
            self.end([place])
            return [LogRange(place, Found.GONE, at, at, error=error)]
        try:
            first, last = self._consumer.get_watermark_offsets(TopicPartition(*place), LOOK_S)
            following = at
            if first <= at < last and is_damaged(error):
                found = find_continuation(self._bootstrap, self._user, self._group, *place, at)
                following = found.next_offset
        except KafkaException as unknown:
            if not (is_transient(unknown.args[0]) or unknown.args[0].code() == KafkaError._UNKNOWN_PARTITION):
                self._refuse(place, unknown.args[0])
            self._wait(place, position)  # its broker is away, and this client may forget it for a moment
            return []
        if at < first:
            self.begin({place: first})
            return [LogRange(place, Found.REMOVED, at, first)]
        if at > last:
            return self._beyond(place, last, position)
        if following <= at:
            self._wait(place, position)  # the error was of an earlier moment, or the log has fallen since
            return []
        self.begin({place: following})
        return [LogRange(place, Found.DAMAGED, at, following)]

    def _refuse(self, place: Place, error: KafkaError) -> None:
        """Raise an error with the next call: what has come goes first, or nobody would ever get it."""
        self._refused = as_clear_error(error, self._bootstrap, "/".join(map(str, place)))
        self._refused.__cause__ = KafkaException(error)

    def _beyond(self, place: Place, end: int, position: _Position) -> list[LogRange]:
        """Return that a log has fallen, once it has ended in front of a position for long enough."""
        now_s = world.monotonic_s()
        if position.beyond_since_s is None:
            position.beyond_since_s = now_s
        if now_s - position.beyond_since_s < LAG_S:
            self._wait(place, position)
            return []
        self.end([place])
        return [LogRange(place, Found.FELL, end, position.next_offset)]

    def _wait(self, place: Place, position: _Position) -> None:
        self._unassign([place])
        position.again_s = world.monotonic_s() + AGAIN_AFTER_S

    def _try_again(self) -> None:
        now_s = world.monotonic_s()
        for place, position in self._positions.items():
            if position.again_s is not None and position.again_s <= now_s:
                self._consumer.incremental_assign([TopicPartition(*place, position.next_offset)])
                position.again_s = None
