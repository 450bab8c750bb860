"""Pauses the partitions of a worker that has too many tuples in hand, and resumes them.

Invariant: a partition that is below its even share is read, so a join whose one side is full gets the other.
"""

import logging
from collections.abc import Iterable, Mapping, Sized

from acktree.core.kafka.log_reader import LogReader
from acktree.producers.tuples import Place

BATCH_RECORDS = 10_000
"""The most records to read at once."""

log = logging.getLogger("acktree.bolt")


class BackPressure:
    """The paused partitions of one reader."""

    def __init__(self, reader: LogReader) -> None:
        self._log = reader
        self.paused: set[Place] = set()
        """Those with too many tuples in hand."""
        self._held_up: set[Place] = set()

    def room(self, hands: Mapping[Place, Sized], max_in_hand: int) -> int:
        """Return how many records may be read; at ``max_in_hand`` tuples reading stops until half are done.

        If there are several topics, partitions below an even share of ``max_in_hand`` stay readable up to
        that share. So at most twice ``max_in_hand`` tuples are in hand.
        """
        count = sum(map(len, hands.values()))
        if not self.paused and count < max_in_hand:
            return min(BATCH_RECORDS, max_in_hand - count)
        assigned = set(self._log.places)
        even_share = max(1, max_in_hand // max(1, len(assigned)))
        held = {place: len(hands.get(place, ())) for place in assigned}
        self.paused &= assigned
        if count <= max_in_hand // 2:
            self.resume()
        else:
            self.resume(place for place in self.paused if held[place] <= even_share // 2)
            if count >= max_in_hand:
                is_join = len({topic for topic, _ in assigned}) > 1
                full = {place for place in assigned if held[place] >= even_share} if is_join else assigned
                self._pause(full - self.paused, count)
        left = max_in_hand - count
        if self.paused:
            left = sum(max(0, even_share - held[place]) for place in assigned - self.paused)
        return min(BATCH_RECORDS, max(1, left))

    def _pause(self, places: set[Place], count: int) -> None:
        if places:
            self._log.pause(sorted(places))
            self.paused |= places
            log.warning(
                "%d tuples in hand: %s paused until some are acked or failed",
                count,
                ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(places)),
                extra={"action": "paused"},
            )

    def pause_all(self) -> None:
        """Fetch nothing more for now: the bolt does not come back."""
        assigned = set(self._log.places)
        if others := assigned - self.paused - self._held_up:
            self._log.pause(sorted(others))
            self._held_up |= others

    def end_pause(self) -> None:
        """End what ``pause_all`` has begun."""
        if self._held_up:
            held, self._held_up = self._held_up - self.paused, set()
            self._log.resume(sorted(held & set(self._log.places)))

    def resume(self, places: Iterable[Place] | None = None) -> None:
        """Resume those of the partitions that are paused, None for all.

        The client would keep one that is revoked paused until it comes back, and then never read it.
        """
        paused = self.paused | self._held_up
        resumed = paused if places is None else paused & set(places)
        if resumed:
            self._log.resume(sorted(resumed & set(self._log.places)))
            self.paused, self._held_up = self.paused - resumed, self._held_up - resumed
