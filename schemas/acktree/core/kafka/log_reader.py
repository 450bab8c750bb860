"""Reads partitions, as member of a group or outside of one, and says of each offset what it holds, in order.

Invariant: the ranges of a partition follow each other without a gap, from where it was begun. After a log
has fallen nothing more comes of its partition until it is begun again: what was fetched says nothing about
what is written there now. One partition's trouble holds up no other one.
"""

import math
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
    is_membership_lost,
    is_missing,
    is_transient,
    is_unknown_epoch,
    is_unreadable,
    truncated_end,
)
from acktree.core.kafka.settings import Settings, consumer_settings, is_incremental
from acktree.core.kafka.unreadable import next_readable
from acktree.wire.errors import AcktreeError
from acktree.wire.state_records import UNKNOWN_EPOCH, LogEpoch

Place = tuple[str, int]
"""Topic and partition."""

LAG_S = 2.0
"""For so long a log that ends in front of a position may be that of a new leader that lags behind."""
LOOK_S = 1.0
"""How long a broker may take to say where a log begins and ends."""
AGAIN_AFTER_S, ALL_AGAIN_AFTER_S = 0.2, 2.0
"""When a partition is begun again that could not be read for a reason that passes: alone, with all others."""


_NO_EPOCHS: Mapping[Place, LogEpoch] = {}


class Found(Enum):
    """What a range of a log is."""

    READ = auto()
    """Its records are all that there are: the other offsets hold none."""
    REMOVED = auto()
    """The log begins behind it: retention, or somebody, has removed what was there."""
    DAMAGED = auto()
    """Nobody can read it: its checksum is wrong, or its format is unknown."""
    FELL = auto()
    """The log ends at its start, although there were records up to its end: none where both are equal."""
    GONE = auto()
    """It does not exist, as the broker says; ``error`` is its answer. A member of a group tries it again."""
    HIDDEN = auto()
    """A transaction is open that began there. A LogReader waits for its end, and returns no such range."""


class LogRange(NamedTuple):
    """The offsets [start, end) of a partition."""

    place: Place
    found: Found
    start: int
    end: int
    records: Sequence[Message] = ()
    error: KafkaError | None = None

    @property
    def action(self) -> str:
        """Return the action of the log line for what cannot be read."""
        known = {Found.REMOVED: "records_lost", Found.DAMAGED: "invalid_record"}
        return known.get(self.found, "log_end_fell")

    @property
    def text(self) -> str:
        """Return what a reader says of records that it cannot read, and passes."""
        name = f"{self.place[0]}[{self.place[1]}]"
        if self.found is Found.REMOVED:
            return f"records {name}@{self.start} to {self.end - 1} were removed before they were read"
        if self.found is Found.DAMAGED:
            return f"records {name}@{self.start} to {self.end - 1} are damaged in the log"
        below = f", below {self.end}" if self.end > self.start else ""
        return f"{name} ends at offset {self.start}{below}: reading continues at the end"


@dataclass(slots=True)
class _Position:
    next_offset: int
    """OFFSET_BEGINNING until something has come of a partition that was begun there."""
    is_paused: bool = False
    is_at_end: bool = False
    """Whether the log had nothing more when it was looked at last."""
    beyond_since_s: float | None = None
    """Since when the log has ended in front of it."""
    again_s: float | None = None
    """When it is begun again; nothing that comes of it before counts."""
    epoch: LogEpoch = UNKNOWN_EPOCH
    """Whose log was read: the client checks with it that a later leader has the same, wherever it begins."""

    @property
    def has_epoch(self) -> bool:
        """Whether a leader can be asked if it has what was read."""
        return self.epoch.epoch >= 0 and self.next_offset >= 0

    def start(self, place: Place) -> TopicPartition:
        """Return where the client begins to fetch."""
        return TopicPartition(*place, self.next_offset, leader_epoch=self.epoch.epoch)


def reader_settings(bootstrap: str, group: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a LogReader's consumer; raises as ``consumer_settings``."""
    return consumer_settings(
        bootstrap, group, user, auto_offset_reset="error", enable_partition_eof=True, **ours
    )


class LogReader:
    """The partitions that it was told to begin, through one consumer."""

    def __init__(
        self, consumer: Consumer, bootstrap: str, group: str, user: Settings, *, is_member: bool = False
    ) -> None:
        """Use a consumer with ``reader_settings``, which nobody else assigns or polls.

        ``is_member``: the consumer subscribes to topics. Its callbacks, which run inside ``read``, ``begin``
        what the group assigns and ``forget`` what it takes away.
        """
        self.consumer = consumer
        self._bootstrap, self._group, self._user = bootstrap, group, user
        self._is_member, self._is_incremental = is_member, not is_member or is_incremental(user)
        self._positions: dict[Place, _Position] = {}
        self._refused: AcktreeError | None = None
        self._unchecked: set[Place] = set()
        """Where nothing that comes counts before the leader was asked whether it has what was read."""

    @property
    def places(self) -> list[Place]:
        """The partitions that are read, in the order in which they were begun."""
        return list(self._positions)

    def begin(self, starts: Mapping[Place, int], epochs: Mapping[Place, LogEpoch] = _NO_EPOCHS) -> None:
        """Read partitions from these offsets on; what was fetched of them does not count any more.

        OFFSET_BEGINNING is where the log begins. ``epochs``: whose logs were read up to there. A member of a
        group whose rebalances are not incremental fetches all its other partitions anew.
        """
        again = [place for place in starts if place in self._positions]
        self.resume(again)  # or the client keeps them paused when they are assigned again
        self._positions |= {
            place: _Position(at, epoch=epochs.get(place, UNKNOWN_EPOCH)) for place, at in starts.items()
        }
        self._assign(again, starts)

    def _assign(self, removed: Collection[Place], started: Collection[Place]) -> None:
        """Change the assignment; what is both removed and started is assigned anew, at its position."""
        assigned = started if self._is_incremental else self.places
        self._unchecked -= {*removed, *assigned}
        self._unchecked |= {place for place in assigned if self._positions[place].has_epoch}
        if not self._is_incremental:
            self.consumer.assign([each.start(place) for place, each in self._positions.items()])
            return
        if removed:
            self.consumer.incremental_unassign([TopicPartition(*place) for place in removed])
        if started or not removed:
            self.consumer.incremental_assign([self._positions[place].start(place) for place in started])

    def end(self, places: Collection[Place]) -> None:
        """Read partitions no more."""
        self.forget(places)
        if places:
            self._assign(places, ())

    def forget(self, places: Collection[Place]) -> None:
        """Know no more of partitions, which the client unassigns by itself: the group has taken them away."""
        there = [place for place in places if place in self._positions]
        self.resume(there)
        self._unchecked -= set(there)
        for place in there:
            del self._positions[place]

    def next_offset(self, place: Place) -> int:
        """Return where a partition continues; OFFSET_BEGINNING until something comes, if it began there."""
        return self._positions[place].next_offset

    def epoch(self, place: Place) -> LogEpoch:
        """Return whose log was read of a partition, and how far, as its records say."""
        position = self._positions.get(place)
        return UNKNOWN_EPOCH if position is None else position.epoch

    def known_end(self, place: Place) -> int | None:
        """Return where a log ended when it was fetched last, None if that is not known."""
        bounds = self.consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
        return bounds[1] if bounds and bounds[1] >= 0 else None

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
        if places:
            switch = self.consumer.pause if is_paused else self.consumer.resume
            switch([TopicPartition(*place) for place in places])
        for place in places:
            self._positions[place].is_paused = is_paused

    def read(self, max_records: int, wait_s: float) -> list[LogRange]:
        """Return what has come, or what comes first within ``wait_s``; serve the group.

        Raises:
            BrokerRefused, NotAuthorized: something can be read no more, for a reason that does not pass. What
                had come by then was returned by the call before. Errors of the consumer as a whole as well.
        """
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        self._begin_again()
        self._check_epochs()
        records: dict[Place, list[Message]] = {}
        unreadable: dict[Place, KafkaError] = {}
        ends: dict[Place, int] = {}
        ranges: list[LogRange] = []
        before = dict(self._positions) if self._is_member else self._positions
        for message in consume_ready(self.consumer, max_records, wait_s):
            place = message.topic() or "", message.partition() or 0
            offset, error = message.offset() or 0, message.error()
            position = self._positions.get(place)
            if position is not None and before.get(place) is not position:
                # It was assigned anew within this call, and this may have been fetched before.
                position.again_s = world.monotonic_s()
            is_read = position is not None and position.again_s is None
            is_ours = position is not None or self._is_member or not place[0]
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if is_missing(error) and place[0] and self._is_member and position is None:
                    ranges.append(LogRange(place, Found.GONE, 0, 0, error=error))
                elif position is not None and (is_missing(error) or is_unreadable(error)):
                    if is_read:
                        unreadable.setdefault(place, error)
                        self._unchecked.discard(place)  # the client gives it up, and seeks no more
                elif is_ours and not (_passes(error) or is_unreadable(error)):
                    self._refuse(place, error)
            elif position is None or not is_read or place in unreadable or place in self._unchecked:
                continue  # it is begun again, at its position
            elif error is None and offset >= position.next_offset:
                records.setdefault(place, []).append(message)
                ends[place] = max(ends.get(place, 0), offset + 1)
                position.is_at_end = False
            elif error is not None:
                ends[place] = max(ends.get(place, 0), offset)
                position.is_at_end = True
        for place, end in ends.items():
            position = self._positions[place]
            position.beyond_since_s = None
            if end > position.next_offset:
                read = records.get(place, ())
                start = position.next_offset if position.next_offset >= 0 else _first_of(read, end)
                if read and (epoch := read[-1].leader_epoch()) is not None:
                    position.epoch = LogEpoch(epoch, (read[-1].offset() or 0) + 1)
                ranges.append(LogRange(place, Found.READ, start, end, read))
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
            if self._is_member:
                self._wait(position)
            else:
                self.end([place])
            return [LogRange(place, Found.GONE, at, at, error=error)]
        if (end := truncated_end(error)) is not None and end < at:
            return self._fell(place, end, position)
        if is_unknown_epoch(error):
            position.epoch = UNKNOWN_EPOCH
        try:
            first, last = self.consumer.get_watermark_offsets(TopicPartition(*place), LOOK_S)
            at = following = first if at < 0 else at
            if first <= at < last and is_damaged(error):
                following = next_readable(self._bootstrap, self._user, self._group, *place, at)
        except KafkaException as unknown:
            if not (is_transient(unknown.args[0]) or unknown.args[0].code() == KafkaError._UNKNOWN_PARTITION):
                self._refuse(place, unknown.args[0])
            self._wait(position)  # its broker is away, and this client may forget it for a moment
            return []
        if at < first:
            self._go_to({place: first})
            return [LogRange(place, Found.REMOVED, at, first)]
        if at > last:
            return self._beyond(place, last, position)
        if following <= at:
            self._wait(position)  # the error was of an earlier moment, or the log has fallen since
            return []
        self._go_to({place: following})
        return [LogRange(place, Found.DAMAGED, at, following)]

    def _refuse(self, place: Place, error: KafkaError) -> None:
        """Raise an error with the next call: what has come goes first, or nobody would ever get it."""
        what = f"{place[0]}/{place[1]}, read as group {self._group}" if place[0] else f"group {self._group}"
        self._refused = as_clear_error(error, self._bootstrap, what)
        self._refused.__cause__ = KafkaException(error)

    def _beyond(self, place: Place, end: int, position: _Position) -> list[LogRange]:
        """Return that a log has fallen; outside of a group, once it ended in front of a position for LAG_S.

        A member goes on at the end, where it costs little to be wrong, before the log is written again.
        """
        now_s = world.monotonic_s()
        if position.beyond_since_s is None:
            position.beyond_since_s = now_s
        if not self._is_member and now_s - position.beyond_since_s < LAG_S:
            self._wait(position)
            return []
        return self._fell(place, end, position)

    def _fell(self, place: Place, end: int, position: _Position) -> list[LogRange]:
        if self._is_member:
            position.again_s = math.inf  # and not unassigned, as the group may take it away
        else:
            self.end([place])
        behind = position.epoch.end if position.has_epoch else position.next_offset
        return [LogRange(place, Found.FELL, end, max(end, behind))]

    def _wait(self, position: _Position) -> None:
        again_after_s = AGAIN_AFTER_S if self._is_incremental else ALL_AGAIN_AFTER_S
        position.again_s = world.monotonic_s() + again_after_s

    def _begin_again(self) -> None:
        now_s = world.monotonic_s()
        due = {
            place: position.next_offset
            for place, position in self._positions.items()
            if position.again_s is not None and position.again_s <= now_s
        }
        if due:
            self._go_to(due)

    def _check_epochs(self) -> None:
        """Let the client ask leaders whether they have what was read.

        It does so by itself where it hears of a new leader, but not for a position that it is given with an
        epoch while it knows the leader already: a seek makes it ask, once the partition is assigned.
        """
        for place in list(self._unchecked):
            try:
                self.consumer.seek(self._positions[place].start(place))
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise as_clear_error(error.args[0], self._bootstrap) from error
            else:
                self._unchecked.discard(place)

    def _go_to(self, starts: Mapping[Place, int]) -> None:
        """Go on at other offsets; what is paused stays so."""
        paused = [place for place in starts if self._positions[place].is_paused]
        self.resume(paused)  # or the client keeps them paused, and does not know that they are
        for place, at in starts.items():
            position = self._positions[place]
            position.next_offset, position.again_s, position.is_at_end = at, None, False
        self._assign(list(starts), starts)
        self.pause(paused)


def epoch_of(committed: TopicPartition) -> LogEpoch:
    """Return whose log was read up to a committed offset, 0 for none, as far as the commit says."""
    epoch = UNKNOWN_EPOCH.epoch if committed.leader_epoch is None else committed.leader_epoch
    return LogEpoch(epoch, max(0, committed.offset))


def _first_of(records: Sequence[Message], end: int) -> int:
    """Return where what came first of a partition that was begun at the beginning of its log begins."""
    return (records[0].offset() or 0) if records else end


def _passes(error: KafkaError) -> bool:
    """Return whether librdkafka gets over an error by itself."""
    return not error.fatal() and (is_transient(error) or is_membership_lost(error))
