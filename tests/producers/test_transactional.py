"""The transactional collector: acks of tuples with a common child leave together, whatever crashes."""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from confluent_kafka import Message
from hypothesis import given

from acktree.producers.collecting.arithmetic.done_above import (
    WINDOW_OFFSETS,
    DoneAbove,
    decode_done,
    encode_done,
)
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.collecting.transactional import TransactionalCollector
from acktree.producers.errors import AckedTwice, EmitAfterAck, NotInHand, ReservedHeader, WrongTopic
from acktree.producers.tuples import Hand, Tuple
from acktree.wire.header import HEADER, decode_header, find_header
from acktree.wire.ids import origin_of
from hypothesis_profiles import examples
from producers.trees import Net, published


class TransactionalNet(Net):
    """A join with a transactional collector, and a sink behind it."""

    def __init__(self) -> None:
        super().__init__(published(join=(["a"], ["b"]), sink=(["b"], [])))
        self.restart()

    def restart(self) -> None:
        """Restart, with nothing in hand and nothing acked."""
        self.hand: Hand = {}
        packer = AckPacker(self.history, "join", self.on_control_record)
        self.join = self.collectors["join"] = TransactionalCollector(
            "join", self.history, packer, self.produce
        )

    def record(self, offset: int) -> Message:
        """Return a tuple's record that has the offset of its source record."""
        made = self.spout(offset)
        return Message(topic="a", partition=0, offset=offset, value=b"v", headers=made.headers())

    def takes(self, *offsets: int) -> list[Tuple]:
        return [self.take("join", self.record(offset), self.hand) for offset in offsets]

    def release(self) -> None:
        self.join.release()
        self.join.flush()

    def parents(self) -> list[list[int]]:
        """Return the source offsets that each child is anchored to."""
        headers = [find_header(record.headers()) for record in self.topics["b"]]
        return [[origin_of(a.root).offset for a in decode_header(h).anchors] if h else [] for h in headers]

    def done_by_sink(self, *offsets: int) -> bool:
        for record in self.topics["b"]:
            self.ack(self.take("sink", record))
        return all(map(self.done, offsets))


@pytest.fixture
def net() -> TransactionalNet:
    return TransactionalNet()


def test_a_child_is_sent_with_its_parents_ack_and_not_before(net: TransactionalNet):
    (parent,) = net.takes(0)
    net.join.emit(b"x", anchors=parent)
    net.release()
    assert net.parents() == []
    net.join.ack(parent)
    assert list(net.hand) == [0]
    net.release()
    assert (net.parents(), list(net.hand)) == ([[0]], [])
    assert net.done_by_sink(0)


def test_the_acks_of_tuples_with_a_common_child_are_sent_together(net: TransactionalNet):
    a, b, c, other = net.takes(0, 1, 2, 3)
    net.join.emit(b"x", anchors=[a, b])
    net.join.emit(b"y", anchors=[b, c])
    for tup in (a, c, other):
        net.join.ack(tup)
    net.release()
    assert (net.parents(), sorted(net.hand)) == ([], [0, 1, 2])
    net.join.ack(b)
    net.release()
    assert (net.parents(), net.hand) == ([[0, 1], [1, 2]], {})
    assert net.done_by_sink(0, 1, 2, 3)


def test_a_child_of_only_a_failed_tuple_is_not_sent(net: TransactionalNet):
    bad, good = net.takes(0, 1)
    net.join.emit(b"x", anchors=bad)
    net.join.emit(b"y", anchors=[bad, good])
    net.join.fail(bad, "no good")
    net.join.ack(good)
    net.release()
    assert net.parents() == [[1]]
    assert [reason for _, reason in net.failed] == ["no good"]
    assert net.done_by_sink(1)


def test_tuples_with_a_child_in_common_with_a_dropped_tuple_continue_without_it(net: TransactionalNet):
    dropped, kept, alone = net.takes(0, 1, 2)
    net.join.emit(b"x", anchors=[dropped, kept])
    net.join.emit(b"y", anchors=alone)
    for tup in (kept, alone):
        net.join.ack(tup)
    for tup in (dropped, alone):
        del net.hand[tup.offset]
    net.join.drop([dropped, alone])
    net.release()
    assert net.parents() == [[1]]
    assert net.done_by_sink(1)
    assert not net.done(0)
    assert not net.done(2)


def test_an_unanchored_emission_is_sent_immediately(net: TransactionalNet):
    net.join.emit(b"x", anchors=())
    assert net.parents() == [[]]


def test_a_tuple_that_will_be_read_again_emits_not_even_an_unanchored_child(net: TransactionalNet):
    """Its transaction was aborted: the child would go out in the next one, and come again with the tuple."""
    (net.join.faults.executing,) = net.takes(0)
    net.join.drop(net.hand.values())
    net.join.emit(b"x", anchors=())
    assert net.parents() == []
    net.join.faults.executing = None
    net.join.emit(b"x", anchors=())
    assert net.parents() == [[]]


def test_a_tuple_beyond_the_window_of_a_commit_waits_for_the_frontier(net: TransactionalNet):
    early, last, far = net.takes(0, WINDOW_OFFSETS - 1, WINDOW_OFFSETS)
    for tup in (last, far):
        net.join.ack(tup)
    net.release()
    assert list(net.hand) == [0, far.offset]
    net.join.ack(early)
    net.release()
    assert net.hand == {}


def test_a_join_wider_than_the_window_of_a_commit_is_sent_when_it_is_complete(net: TransactionalNet):
    window = net.takes(0, WINDOW_OFFSETS, 3 * WINDOW_OFFSETS)
    net.join.emit(b"x", anchors=window)
    for tup in window:
        net.join.ack(tup)
    net.release()
    assert (net.hand, len(net.parents())) == ({}, 1)


@pytest.mark.parametrize("released", [False, True])
def test_misuse_is_caught_before_and_after_the_release(net: TransactionalNet, released: bool):
    (done,), stranger = net.takes(0), net.take("sink", net.record(1))
    net.join.ack(done)
    if released:
        net.release()
    for error, does in (
        (AckedTwice, lambda: net.join.ack(done)),
        (AckedTwice, lambda: net.join.fail(done, "r")),
        (AckedTwice, lambda: net.join.reset_timeout(done)),
        (EmitAfterAck, lambda: net.join.emit(b"", anchors=done)),
        (NotInHand, lambda: net.join.ack(stranger)),
        (NotInHand, lambda: net.join.emit(b"", anchors=stranger)),
        (WrongTopic, lambda: net.join.emit(b"", anchors=stranger, topic="nowhere")),
        (ReservedHeader, lambda: net.join.emit(b"", anchors=stranger, headers=[(HEADER, b"")])),
    ):
        with pytest.raises(error):
            does()


@dataclass
class Durable:
    """What a transaction made durable: everything sent, and the commit."""

    frontier: int
    above: DoneAbove | None
    sent: int
    control: dict


class CrashingJoin:
    """One partition of tuples 0 to ``count``, read by a join that may crash between any two steps."""

    def __init__(self, count: int) -> None:
        self.net = TransactionalNet()
        self.records = [self.net.record(offset) for offset in range(count)]
        self.durable = Durable(0, None, 0, dict(self.net.fold))
        self.crash()

    def crash(self) -> None:
        """Lose everything since the last commit, and restart from it."""
        del self.net.topics["b"][self.durable.sent :]
        self.net.fold.clear()
        self.net.fold.update(self.durable.control)
        self.net.restart()
        self.held: list[Tuple] = []
        self.next_offset, self.above = self.durable.frontier, self.durable.above

    def read(self) -> None:
        if self.next_offset == len(self.records):
            return
        offset = self.next_offset
        self.next_offset += 1
        if not (self.above and self.above.holds(offset)):
            self.held.append(self.net.take("join", self.records[offset], self.net.hand))

    def commit(self) -> None:
        """Do what the worker does: release, then commit the frontier and what is done above it."""
        self.net.release()
        end, waiting = self.next_offset, list(self.net.hand)
        if self.above and self.above.end > end:
            waiting += sorted(offset for offset in self.above.open if offset >= end)
            end = self.above.end
        frontier = waiting[0] if waiting else end
        above = decode_done(encode_done(frontier, end, waiting), frontier)
        self.durable = Durable(frontier, above, len(self.net.topics["b"]), dict(self.net.fold))

    def emit(self, data: st.DataObject) -> None:
        if self.held:
            chosen = data.draw(st.lists(st.sampled_from(self.held), min_size=1, max_size=3))
            self.net.join.emit(b"x", anchors=chosen)

    def ack(self, data: st.DataObject) -> None:
        if self.held:
            self.net.join.ack(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))


@examples(300)
@given(data=st.data(), count=st.integers(1, 12))
def test_after_any_crash_between_commits_trees_close_and_tuples_take_effect_once(data, count):
    model = CrashingJoin(count)
    steps = st.sampled_from(["read", "read", "emit", "ack", "ack", "commit", "crash"])
    for step in data.draw(st.lists(steps, max_size=60)):
        getattr(model, step)(*([data] if step in ("emit", "ack") else []))
    while model.durable.frontier < count:
        model.read()
        for tup in model.held[:]:
            model.net.join.ack(tup)
        model.held.clear()
        model.commit()
    assert model.net.done_by_sink(*range(count))
