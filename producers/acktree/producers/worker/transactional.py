"""The collector of a bolt that acks in any order, exactly once: what is tied leaves in one transaction.

Invariant: nothing anchored to a tuple leaves before the tuple's ack, nor before the acks of all tuples it
shares a child with, so a crash finds all of it done or none. What lies beyond the window that a commit can
tell of is held back. What is emitted unanchored leaves at once.
"""

from collections.abc import Iterable
from typing import NamedTuple

from acktree.producers.collector import Collector, UserHeaders
from acktree.producers.errors import Misuse
from acktree.producers.kafka.done_above import WINDOW_OFFSETS
from acktree.producers.kafka.packing import AckPacker
from acktree.producers.native.columns import Produce, ProduceRows
from acktree.producers.tuples import ACKED, FAILED, IN_HAND, Hand, Tuple, is_over
from acktree.producers.worker.edge_pool import EdgePool
from acktree.schemas.registry import History


class Child(NamedTuple):
    """What was emitted, with the tuples it is anchored to."""

    parents: tuple[Tuple, ...]
    value: bytes | str | None
    topic: str | None
    key: bytes | str | None
    headers: UserHeaders | None
    timestamp_ms: int | None


class Tie:
    """Tuples that share children, or one alone; ``said`` has a failed one's reason, None for an acked one."""

    __slots__ = ("children", "said", "tuples")

    def __init__(self, tuple: Tuple) -> None:
        self.tuples: dict[Tuple, None] = {tuple: None}
        self.said: dict[Tuple, str | None] = {}
        self.children: list[Child] = []

    def absorb(self, other: "Tie") -> None:
        """Take over all of another tie."""
        self.tuples |= other.tuples
        self.said |= other.said
        self.children += other.children


class TransactionalCollector(Collector):
    """Keeps what a bolt says until it may leave; ``release`` lets it go."""

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
        self._ties: dict[Tuple, Tie] = {}

    def emit(
        self,
        value: bytes | str | None,
        *,
        anchors: Tuple | Iterable[Tuple],
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Emit when all anchors are acked; see there."""
        parents = (anchors,) if isinstance(anchors, Tuple) else tuple(dict.fromkeys(anchors))
        if not parents:
            super().emit(value, anchors=(), topic=topic, key=key, headers=headers, timestamp_ms=timestamp_ms)
            return
        try:
            if all(map(is_over, parents)):
                return
            self.targets.find(topic)
            self.check_emission(value, key, headers, timestamp_ms)
            held = [parent for parent in parents if self.check_anchor(parent)]
        except Misuse as misuse:
            self.faults.blame(misuse, parents)
            return
        child = Child(parents, value, topic, key, headers and list(headers), timestamp_ms)
        self._tie(held).children.append(child)

    def ack(self, tuple: Tuple) -> None:
        """Ack a tuple; see there."""
        self._say(tuple, "ack", None)

    def fail(self, tuple: Tuple, reason: str) -> None:
        """Fail a tuple; what was emitted for it alone is not sent. See there."""
        self._say(tuple, "fail", reason)

    def _say(self, tuple: Tuple, verb: str, reason: str | None) -> None:
        if self._may_speak_of(tuple, verb):
            self._tie([tuple]).said[tuple] = reason
            tuple._state = ACKED if reason is None else FAILED

    def _take_back(self, tuple: Tuple, reason: str) -> None:
        """The ack has not left, and the tuple's fault makes a fail of it when it does."""

    def _tie(self, tuples: Iterable[Tuple]) -> Tie:
        """Return the one tie of these tuples."""
        found: Tie | None = None
        for tuple in tuples:
            tie = self._ties.get(tuple)
            if tie is None:
                tie = self._ties[tuple] = Tie(tuple)
            if found is None:
                found = tie
            elif tie is not found:
                found.absorb(tie)
                for each in tie.tuples:
                    self._ties[each] = found
        assert found is not None
        return found

    def drop(self, tuples: Iterable[Tuple]) -> None:
        """Let go of tuples that another worker will read again; what is tied to them goes on without them."""
        for tuple in (gone := list(tuples)):
            tie = self._ties.pop(tuple, None)
            if tie is not None:
                del tie.tuples[tuple]
                tie.said.pop(tuple, None)
        super().drop(gone)

    def release(self) -> None:
        """Let go what is said in full, but for ties that reach out of the window of a partition's commit."""
        ready = {tie for tie in self._ties.values() if len(tie.said) == len(tie.tuples)}
        while far := self._too_far(ready):
            ready -= far
        for tie in ready:
            self._let_go(tie)

    def _too_far(self, ready: set[Tie]) -> set[Tie]:
        """Return the ties with a tuple too far above the frontier that the others would leave behind."""
        ends: dict[int, float] = {}
        far = set()
        for tie in ready:
            for tuple in tie.tuples:
                hand = tuple._hand
                assert hand is not None, tuple
                if id(hand) not in ends:
                    ends[id(hand)] = self._end(hand, ready)
                if tuple.offset >= ends[id(hand)]:
                    far.add(tie)
        return far

    def _end(self, hand: Hand, ready: set[Tie]) -> float:
        """Return the offset a commit cannot tell of once ``ready`` has left this hand."""
        for offset, tuple in hand.items():
            if self._ties.get(tuple) not in ready:
                return offset + WINDOW_OFFSETS
        return float("inf")

    def _let_go(self, tie: Tie) -> None:
        for tuple, reason in tie.said.items():
            del self._ties[tuple]
            tuple._state = IN_HAND
            if reason is not None:
                super().fail(tuple, reason)
        for parents, value, topic, key, headers, timestamp_ms in tie.children:
            whole = [parent for parent in parents if parent in tie.said and _may_be_done(parent)]
            if whole:
                super().emit(
                    value, anchors=whole, topic=topic, key=key, headers=headers, timestamp_ms=timestamp_ms
                )
        for tuple in tie.said:
            if tuple._state is IN_HAND:
                super().ack(tuple)


def _may_be_done(tuple: Tuple) -> bool:
    return tuple._state is IN_HAND and tuple._fault is None
