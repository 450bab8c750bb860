"""The collector of an exactly-once bolt that acks in any order: what belongs together is one transaction.

Invariant: nothing anchored to a tuple is sent before the tuple's ack, nor before the acks of all tuples it
shares a child with, so a crash finds all of it done or none. Tuples beyond the window that a commit's
metadata covers are held back, where there is one. What is emitted unanchored is sent immediately.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from acktree.core.topology.registry import History
from acktree.producers.collecting.arithmetic.done_above import WINDOW_OFFSETS
from acktree.producers.collecting.arithmetic.edge_pool import EdgePool
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.collecting.collector import Collector, UserHeaders
from acktree.producers.collecting.held_output import HeldChild, size_of
from acktree.producers.columns import Produce, ProduceRows
from acktree.producers.errors import Misuse, OutputTooSlow
from acktree.producers.tuples import ACKED, FAILED, IN_HAND, Hand, Tuple, is_over


class HeldFail(NamedTuple):
    """The fail of a tuple, not sent yet; ``retry_after_ms`` is a delay, BACK_OFF or NEVER."""

    reason: str
    retry_after_ms: int
    stack: str


class TransactionGroup:
    """Tuples that share children, or a single one; an outcome is a fail, None for an ack."""

    __slots__ = ("children", "outcomes", "tuples")

    def __init__(self, tup: Tuple) -> None:
        self.tuples: dict[Tuple, None] = {tup: None}
        self.outcomes: dict[Tuple, HeldFail | None] = {}
        self.children: list[HeldChild] = []

    @property
    def size(self) -> int:
        """About how many bytes the children take."""
        return sum(size_of(child.value, child.key) for child in self.children)

    def merge(self, other: "TransactionGroup") -> None:
        """Add all of another group."""
        self.tuples |= other.tuples
        self.outcomes |= other.outcomes
        self.children += other.children


class TransactionalCollector(Collector):
    """Holds back what a bolt emits, acks and fails; ``release`` sends what is complete."""

    def __init__(
        self,
        bolt: str,
        history: History,
        packer: AckPacker,
        produce: Produce,
        edges: EdgePool | None = None,
        produce_rows: ProduceRows | None = None,
    ) -> None:
        super().__init__(bolt, history, packer, produce, edges, produce_rows)
        self.window_offsets: float = WINDOW_OFFSETS
        """How far above the frontier a commit can name offsets as done; ``math.inf``: any distance."""
        self._groups: dict[Tuple, TransactionGroup] = {}

    def _emit_for(
        self,
        parents: tuple[Tuple, ...],
        value: Any,
        topic: str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int | None,
    ) -> None:
        """Emit when all parents are acked, immediately if there are none."""
        if not parents:
            super()._emit_for(parents, value, topic, key, headers, timestamp_ms)
            return
        try:
            if all(map(is_over, parents)):
                return
            value = self.payloads.write(value, self.targets.find(topic).topic)
            self.faults.check_emission(value, key, headers, timestamp_ms)
            child = HeldChild(parents, value, topic, key, headers and list(headers), timestamp_ms)
            with self.guard:
                held = [parent for parent in parents if self.faults.check_anchor(parent)]
                if held:
                    self._group_of(held).children.append(child)
        except Misuse as misuse:
            self.faults.refuse_call(misuse, parents)

    def _ack(self, tup: Tuple) -> None:
        self._record_outcome(tup, "ack", None)

    def _fail(self, tup: Tuple, reason: str, retry_after_ms: int, stack: str) -> None:
        """Fail a tuple; what was emitted for it alone is not sent. See ``Collector.fail``."""
        self._record_outcome(tup, "fail", HeldFail(reason, retry_after_ms, stack))

    def _record_outcome(self, tup: Tuple, verb: str, fail: HeldFail | None) -> None:
        if self.faults.check_in_hand(tup, verb):
            self._group_of([tup]).outcomes[tup] = fail
            tup._state = ACKED if fail is None else FAILED

    def _undo_ack(self, tup: Tuple, reason: str) -> None:
        """Nothing to undo: the ack is still held back, and ``release`` turns it into a fail."""

    def _group_of(self, tuples: Iterable[Tuple]) -> TransactionGroup:
        """Return the group of these tuples; merge their groups if there are several."""
        found: TransactionGroup | None = None
        for tup in tuples:
            group = self._groups.get(tup)
            if group is None:
                group = self._groups[tup] = TransactionGroup(tup)
            if found is None:
                found = group
            elif group is not found:
                found.merge(group)
                for member in group.tuples:
                    self._groups[member] = found
        assert found is not None
        return found

    def drop(self, tuples: Iterable[Tuple]) -> None:
        """Release tuples that another worker will read again; their groups continue without them."""
        for tup in (dropped := list(tuples)):
            group = self._groups.pop(tup, None)
            if group is not None:
                del group.tuples[tup]
                group.outcomes.pop(tup, None)
        super().drop(dropped)

    def release(self) -> bool:
        """Send the groups whose tuples are all acked or failed, except those beyond a partition's window.

        Of much output only what a transaction takes; return whether there is more.
        """
        in_order = dict.fromkeys(self._groups.values())
        complete = [group for group in in_order if len(group.outcomes) == len(group.tuples)]
        ready = set(self._first_of(complete))
        has_more = len(ready) < len(complete)
        while self.window_offsets < math.inf and (beyond := self._beyond_window(ready)):
            ready -= beyond
        for group in in_order:
            if group in ready:
                self._send_group(group)
        return has_more

    def _first_of(self, complete: Sequence[TransactionGroup]) -> Iterator[TransactionGroup]:
        """Yield the first groups, at least one, up to the limit of a transaction."""
        size = 0
        for group in complete:
            yield group
            if self.children.limit is not None:
                size += group.size
                if size >= self.children.limit.bytes:
                    return

    def _beyond_window(self, ready: set[TransactionGroup]) -> set[TransactionGroup]:
        """Return the groups with a tuple too far above the frontier left once the others are sent."""
        ends: dict[int, float] = {}
        beyond = set()
        for group in ready:
            for tup in group.tuples:
                hand = tup._hand
                assert hand is not None, tup
                if id(hand) not in ends:
                    ends[id(hand)] = self._window_end(hand, ready)
                if tup.offset >= ends[id(hand)]:
                    beyond.add(group)
        return beyond

    def _window_end(self, hand: Hand, ready: set[TransactionGroup]) -> float:
        """Return the first offset beyond the window of a commit once ``ready`` has left this hand."""
        for offset, tup in hand.items():
            if self._groups.get(tup) not in ready:
                return offset + self.window_offsets
        return math.inf

    def _send_group(self, group: TransactionGroup) -> None:
        for tup, fail in group.outcomes.items():
            del self._groups[tup]
            tup._state = IN_HAND
            if fail is not None:
                super()._fail(tup, *fail)
        try:
            self.children.check_size(group.size if self.children.has_limit else 0)
        except OutputTooSlow as error:
            self.children.record_unwritable(tuple(group.outcomes), error)
        for child in group.children:
            acked = tuple(each for each in child.parents if each in group.outcomes and _may_be_acked(each))
            if acked:
                super()._emit_for(acked, *child[1:])
        for tup in group.outcomes:
            if tup._state is IN_HAND:
                super()._ack(tup)


def _may_be_acked(tup: Tuple) -> bool:
    return tup._state is IN_HAND and tup._fault is None
