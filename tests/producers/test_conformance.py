"""The conformance suite: the in-memory double and a worker on a broker behave alike."""

import asyncio
import sys
from collections import Counter
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.errors import MissingExtra
from acktree.producers.testing import BoltDouble, Emission
from producers.conformance import Run, Sink, by_value, conformance, conformance_with_exactly_once, short

pytestmark = pytest.mark.simulated


@conformance("broker")
def test_a_basic_bolt_anchors_and_acks_by_itself(run: Run):
    class PassWithHeaders(BasicBolt):
        def execute(self, tup, emit):
            emit(tup.value, key=b"k", headers=[("h", b"1")])

    outcome = run(PassWithHeaders(), 3)
    expected = [Emission("b", b"%d" % n, b"k", [("h", b"1")], (n,)) for n in range(3)]
    assert by_value(outcome) == expected
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 1, 2}, {}, set())


@conformance()
def test_one_exception_fails_one_tuple_and_leaves_its_tree_open(run: Run):
    class Picky(BasicBolt):
        def execute(self, tup, emit):
            emit(tup.value)
            if tup.value == b"1":
                raise ValueError("not one")

    outcome = run(Picky(), 3)
    assert outcome.failed == {1: "ValueError: not one"}
    assert (outcome.acked, outcome.open) == ({0, 2}, {1})


@conformance_with_exactly_once("broker-exactly-once")
def test_an_async_bolt_acks_tuples_as_they_end_and_sends_nothing_for_failed_ones(run: Run):
    class FinishInReverse(AsyncBolt):
        async def execute(self, tup, emit):
            for topic in ("b", "c"):
                emit(tup.value, topic=short(topic, tup), key=b"k", headers=[("h", b"1")])
            await asyncio.sleep(0.001 * (5 - int(tup.value)))
            if tup.value == b"1":
                raise ValueError("not one")

    outcome = run(FinishInReverse(), 4, emits=("b", "c"))
    assert by_value(outcome) == [
        Emission(topic, b"%d" % n, b"k", [("h", b"1")], (n,)) for n in (0, 2, 3) for topic in ("b", "c")
    ]
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 2, 3}, {1: "ValueError: not one"}, {1})


@conformance()
def test_a_bolt_that_emits_nothing_closes_its_trees(run: Run):
    outcome = run(Sink(), 3)
    assert (outcome.emitted, outcome.acked, outcome.open) == ([], {0, 1, 2}, set())


@conformance()
def test_several_children_in_two_topics_belong_to_one_tree(run: Run):
    class FanOut(BasicBolt):
        def execute(self, tup, emit):
            for topic in ("b", "c", "b"):
                emit(tup.value, topic=short(topic, tup))

    outcome = run(FanOut(), 2, emits=("b", "c"))
    assert [(emission.topic, emission.anchors) for emission in by_value(outcome)] == [
        (topic, (number,)) for number in range(2) for topic in ("b", "b", "c")
    ]
    assert outcome.open == set()


@conformance_with_exactly_once()
def test_a_join_is_anchored_to_all_of_its_inputs(run: Run):
    class Pairs(Bolt):
        left = None

        def execute(self, tup, collector):
            if self.left is None:
                self.left = tup
                return
            pair, self.left = (self.left, tup), None
            collector.emit(b"+".join(tup.value for tup in pair), anchors=pair)
            for tup in pair:
                collector.ack(tup)

    outcome = run(Pairs(), 5, held=1)
    assert [(emission.value, emission.anchors) for emission in by_value(outcome)] == [
        (b"0+1", (0, 1)),
        (b"2+3", (2, 3)),
    ]
    assert (outcome.acked, outcome.open) == ({0, 1, 2, 3}, {4})


@conformance_with_exactly_once()
def test_an_explicit_fail_carries_its_reason_and_an_unanchored_child_no_tree(run: Run):
    class FailZero(Bolt):
        def execute(self, tup, collector):
            collector.emit(tup.value, anchors=())
            if tup.value == b"0":
                collector.reset_timeout(tup)
                collector.fail(tup, "no zero")
            else:
                collector.ack(tup)

    outcome = run(FailZero(), 2)
    assert [emission.anchors for emission in outcome.emitted] == [(), ()]
    assert (outcome.failed, outcome.acked, outcome.open) == ({0: "no zero"}, {1}, {0})
    assert outcome.resets == [0]


@conformance_with_exactly_once()
def test_a_window_acks_all_its_tuples_at_a_tick(run: Run):
    class WindowOfFour(Bolt):
        tick_interval_s = 0.01

        def prepare(self, context):
            self.held = []

        def execute(self, tup, collector):
            self.held.append(tup)

        def tick(self, collector):
            if len(self.held) == 4:
                collector.emit(b"four", anchors=self.held)
                for tup in self.held:
                    collector.ack(tup)
                self.held.clear()

    outcome = run(WindowOfFour(), 4)
    assert [(emission.value, emission.anchors) for emission in outcome.emitted] == [(b"four", (0, 1, 2, 3))]
    assert (outcome.acked, outcome.open) == ({0, 1, 2, 3}, set())


def test_acking_a_tuple_that_the_double_dropped_does_nothing():
    class HoldLast(Bolt):
        def execute(self, tup, collector):
            self.held, self.collector = tup, collector

        def drop(self, tuples):
            self.dropped = tuples

    bolt = HoldLast()
    double = BoltDouble(bolt)
    double.give(b"x")
    double.take_away()
    bolt.collector.ack(bolt.held)
    double.tick()
    assert bolt.dropped == [bolt.held]
    assert (double.acked, set(double.open), double.in_hand) == (set(), {0}, [])


@conformance("broker")
def test_a_batch_fails_one_tuple_and_acks_the_others(run: Run):
    class BatchFailingOne(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit_many(
                [tup.value for tup in tuples], tuples, keys=[b"k"] * len(tuples), headers=[("h", b"1")]
            )
            for tup in tuples:
                if tup.value == b"1":
                    collector.fail(tup, "not one")

    outcome = run(BatchFailingOne(), 4)
    assert by_value(outcome) == [Emission("b", b"%d" % n, b"k", [("h", b"1")], (n,)) for n in range(4)]
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 2, 3}, {1: "not one"}, {1})


@conformance()
def test_a_batch_processed_by_columns_closes_all_trees_except_those_it_fails_later(run: Run):
    class ColumnsFailingOne(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit_many([value + b"!" for value in tuples.values], tuples, keys=tuples.keys)
            for at, value in enumerate(tuples.values):
                if value == b"1":
                    collector.fail(tuples[at], "not one")

    outcome = run(ColumnsFailingOne(), 4)
    assert [emission.value for emission in by_value(outcome)] == [b"%d!" % number for number in range(4)]
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 2, 3}, {1: "not one"}, {1})


@conformance()
def test_a_batch_processed_by_columns_that_emits_nothing_is_acked(run: Run):
    class Nothing(BatchBolt):
        def execute(self, tuples, collector):
            assert len(tuples) == len(tuples.values)

    assert run(Nothing(), 3).acked == {0, 1, 2}


@conformance()
def test_several_children_of_a_batch_in_two_topics_close_their_trees(run: Run):
    class FanOutBatch(BatchBolt):
        def execute(self, tuples, collector):
            for topic in ("b", "c", "b"):
                collector.emit_many([tup.value for tup in tuples], tuples, topic=short(topic, tuples[0]))

    outcome = run(FanOutBatch(), 3, emits=("b", "c"))
    assert (len(outcome.emitted), outcome.acked, outcome.open) == (9, {0, 1, 2}, set())


@conformance()
def test_an_exception_fails_the_whole_batch(run: Run):
    class BrokenBatch(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit_many([tup.value for tup in tuples], tuples)
            raise ValueError("whole batch")

    outcome = run(BrokenBatch(), 3)
    assert outcome.failed == dict.fromkeys(range(3), "ValueError: whole batch")
    assert (outcome.acked, outcome.open) == (set(), {0, 1, 2})


@conformance()
def test_one_child_of_several_tuples_of_a_batch_holds_all_their_trees(run: Run):
    class JoinBatch(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit(b"all", anchors=tuples)
            collector.emit(b"none", anchors=())

    outcome = run(JoinBatch(), 3)
    assert sorted(sum((emission.anchors for emission in outcome.emitted), ())) == [0, 1, 2]
    assert (outcome.acked, outcome.open) == ({0, 1, 2}, set())


@conformance("broker")
def test_a_table_goes_in_and_filtered_and_exploded_tables_come_out(run: Run):
    class TablesFailingOne(BatchBolt):
        def execute(self, tuples, collector):
            table = tuples.table()
            odd = table.filter(pc.equal(table["offset"], 1))
            collector.emit_many(odd["value"], odd["row"], keys=pa.array([b"k"] * len(odd)))
            twice = pa.concat_tables([table, table])
            collector.emit_many(pa.array([b"twice"] * len(twice)), twice["row"])
            collector.emit(b"all", anchors=tuples)
            for row in table.filter(pc.equal(table["value"], b"2"))["row"].to_pylist():
                collector.fail(tuples[row], "not two")

    outcome = run(TablesFailingOne(), 4)
    values = Counter(emission.value for emission in outcome.emitted)
    assert (values[b"1"], values[b"twice"]) == (1, 8)
    assert [(emission.key, emission.anchors) for emission in outcome.emitted if emission.value == b"1"] == [
        (b"k", (1,))
    ]
    of_all = [
        emission.anchors for emission in outcome.emitted if emission.value == b"all"
    ]  # the broker may cut them apart
    assert sorted(chain.from_iterable(of_all)) == [0, 1, 2, 3]
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 1, 3}, {2: "not two"}, {2})


def test_a_table_without_pyarrow_fails_no_tuple_but_says_what_to_install(monkeypatch):
    class NeedsPyarrow(BatchBolt):
        def execute(self, tuples, collector):
            tuples.table()

    double = BoltDouble(NeedsPyarrow())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"\.\[arrow\]"):
        double.give(b"a")
    assert (double.acked, double.failed) == (set(), {})


class Keep(Bolt):
    """Holds all it gets; joins the first two, and acks the first of them."""

    def prepare(self, context):
        self.held, self.late = [], []

    def execute(self, tup, collector):
        self.held.append(tup)
        if tup.value == b"1":
            collector.emit(b"0+1", anchors=self.held)
            collector.ack(self.held[0])

    def timed_out(self, tup, collector):
        self.late.append(tup.value)
        if tup.value == b"2":
            collector.emit(b"2 alone", anchors=tup)
            collector.ack(tup)
        elif tup.value == b"3":
            raise LookupError("no such tuple")

    def tick(self, collector):
        for tup in (self.held[1], *self.held[3:]):
            collector.ack(tup)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_tuple_held_longer_than_the_message_timeout_fails(exactly_once: bool):
    bolt = Keep()
    double = BoltDouble(bolt, exactly_once=exactly_once)
    double.give(b"0", b"1", b"2", b"3", b"4")
    double.time_out()
    assert bolt.late == [b"1", b"2", b"3", b"4"]
    assert double.in_hand == []
    assert double.acked == {0, 2}
    too_long = "held longer than the message timeout"
    assert double.failed == {1: too_long, 3: "LookupError: no such tuple", 4: too_long}
    assert {emission.value for emission in double.emitted} == {b"0+1", b"2 alone"}
    double.tick()
    assert (double.counters.acked, double.counters.failed, double.counters.misuses) == (2, 3, 0)
