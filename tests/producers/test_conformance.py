"""What a bolt does, said once and held over the in-memory double and over a worker on a real broker."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from acktree.producers import ArrowBolt, AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.arrow import BadTable
from acktree.producers.batch import UnevenBatch
from acktree.producers.errors import AckedTwice, EmitAfterAck, MissingExtra, ReservedHeader, WrongTopic
from acktree.producers.testing import BoltDouble, Emission
from acktree.schemas.header import HEADER, decode_header, find_header
from acktree.schemas.ids import origin_of
from producers.cluster import Cluster, until


@dataclass
class Outcome:
    """What is known after all values were executed; values are numbered from 0."""

    emitted: list[Emission]
    acked: set[int]
    failed: dict[int, str]
    open: set[int]
    resets: list[int]


Run = Callable[..., Outcome]


def in_memory(exactly_once: bool) -> Run:
    def run(bolt, count: int, emits=("b",), held: int = 0) -> Outcome:
        double = BoltDouble(bolt, emits=emits, exactly_once=exactly_once)
        double.give(*(b"%d" % number for number in range(count)))
        double.tick()
        assert len(double.in_hand) == held
        double.close()
        return Outcome(double.emitted, double.acked, double.failed, set(double.open), double.resets)

    return run


class Sink(BasicBolt):
    def execute(self, tuple, emit):
        pass


def on_broker(cluster: Cluster, exactly_once: bool) -> Run:
    def run(bolt, count: int, emits=("b",), held: int = 0) -> Outcome:
        cluster.apply(exactly_once, bolt=(["a"], list(emits)))
        cluster.apply(reader=(list(emits), []))
        cluster.emit(range(count), 0)
        worker = cluster.start(bolt, "bolt")
        until(lambda: worker.error or worker.acked + worker.failed == count - held, "all said")
        worker.stop()
        records = [record for short in emits for record in cluster.read(cluster.topic(short))]
        reader = cluster.start(Sink(), "reader")
        until(lambda: reader.acked == len(records), "all read")
        reader.stop()
        fails = [fail for ack in cluster.acks() for fail in ack.fails]
        acks = [entry for ack in cluster.acks() if ack.task.startswith("bolt@") for entry in ack.acks]
        return Outcome(
            [emission(record, cluster.name) for record in records],
            {origin_of(int(entry["root"])).offset for entry in acks},
            {origin_of(fail.root).offset: fail.reason for fail in fails},
            {origin_of(root).offset for root in cluster.open_roots()},
            [origin_of(int(root)).offset for ack in cluster.acks() for root in ack.resets],
        )

    return run


def emission(record, prefix: str) -> Emission:
    header = find_header(record.headers())
    anchors = decode_header(header).anchors if header else ()
    numbers = tuple(origin_of(anchor.root).offset for anchor in anchors)
    rest = [pair for pair in record.headers() or () if pair[0] != HEADER]
    return Emission(record.topic().removeprefix(f"{prefix}."), record.value(), record.key(), rest, numbers)


@pytest.fixture(params=["double", "broker"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "double":
        return in_memory(False)
    return on_broker(request.getfixturevalue("cluster"), False)


@pytest.fixture(params=["double", "double-exactly-once", "broker", "broker-exactly-once"])
def any_order(request: pytest.FixtureRequest) -> Run:
    """Bolts that may ack in any order leave by a collector of their own where it is exactly once."""
    exactly_once = request.param.endswith("-exactly-once")
    if request.param.startswith("double"):
        return in_memory(exactly_once)
    return on_broker(request.getfixturevalue("cluster"), exactly_once)


def short(topic: str, given) -> str:
    """Return the name under which a bolt of this test reaches a topic, on either side."""
    return given.topic.removesuffix("a") + topic if given.topic.endswith(".a") else topic


def by_value(outcome: Outcome) -> list[Emission]:
    return sorted(outcome.emitted, key=lambda each: (each.value, each.topic))


def test_a_basic_bolt_anchors_and_acks_by_itself(run: Run):
    class Pass(BasicBolt):
        def execute(self, tuple, emit):
            emit(tuple.value, key=b"k", headers=[("h", b"1")])

    outcome = run(Pass(), 3)
    expected = [Emission("b", b"%d" % n, b"k", [("h", b"1")], (n,)) for n in range(3)]
    assert by_value(outcome) == expected
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 1, 2}, {}, set())


def test_one_exception_fails_one_tuple_and_leaves_its_tree_open(run: Run):
    class Picky(BasicBolt):
        def execute(self, tuple, emit):
            emit(tuple.value)
            if tuple.value == b"1":
                raise ValueError("not one")

    outcome = run(Picky(), 3)
    assert outcome.failed == {1: "ValueError: not one"}
    assert (outcome.acked, outcome.open) == ({0, 2}, {1})


def test_an_async_bolt_acks_in_the_order_its_tuples_end_and_sends_nothing_for_failed_ones(any_order: Run):
    class Late(AsyncBolt):
        async def execute(self, tuple, emit):
            for topic in ("b", "c"):
                emit(tuple.value, topic=short(topic, tuple), key=b"k", headers=[("h", b"1")])
            await asyncio.sleep(0.001 * (5 - int(tuple.value)))
            if tuple.value == b"1":
                raise ValueError("not one")

    outcome = any_order(Late(), 4, emits=("b", "c"))
    assert by_value(outcome) == [
        Emission(topic, b"%d" % n, b"k", [("h", b"1")], (n,)) for n in (0, 2, 3) for topic in ("b", "c")
    ]
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 2, 3}, {1: "ValueError: not one"}, {1})


def test_a_bolt_that_emits_nothing_closes_its_trees(run: Run):
    outcome = run(Sink(), 3)
    assert (outcome.emitted, outcome.acked, outcome.open) == ([], {0, 1, 2}, set())


def test_several_children_in_two_topics_belong_to_one_tree(run: Run):
    class Fan(BasicBolt):
        def execute(self, tuple, emit):
            for topic in ("b", "c", "b"):
                emit(tuple.value, topic=short(topic, tuple))

    outcome = run(Fan(), 2, emits=("b", "c"))
    assert [(each.topic, each.anchors) for each in by_value(outcome)] == [
        (topic, (number,)) for number in range(2) for topic in ("b", "b", "c")
    ]
    assert outcome.open == set()


def test_a_join_is_anchored_to_all_of_its_inputs(any_order: Run):
    class Pairs(Bolt):
        left = None

        def execute(self, tuple, collector):
            if self.left is None:
                self.left = tuple
                return
            pair, self.left = (self.left, tuple), None
            collector.emit(b"+".join(each.value for each in pair), anchors=pair)
            for each in pair:
                collector.ack(each)

    outcome = any_order(Pairs(), 5, held=1)
    assert [(each.value, each.anchors) for each in by_value(outcome)] == [
        (b"0+1", (0, 1)),
        (b"2+3", (2, 3)),
    ]
    assert (outcome.acked, outcome.open) == ({0, 1, 2, 3}, {4})


def test_a_fail_by_hand_carries_its_reason_and_an_unanchored_child_no_tree(any_order: Run):
    class ByHand(Bolt):
        def execute(self, tuple, collector):
            collector.emit(tuple.value, anchors=())
            if tuple.value == b"0":
                collector.reset_timeout(tuple)
                collector.fail(tuple, "no zero")
            else:
                collector.ack(tuple)

    outcome = any_order(ByHand(), 2)
    assert [each.anchors for each in outcome.emitted] == [(), ()]
    assert (outcome.failed, outcome.acked, outcome.open) == ({0: "no zero"}, {1}, {0})
    assert outcome.resets == [0]


def test_a_window_acks_all_it_held_at_a_tick(any_order: Run):
    class Window(Bolt):
        tick_interval_s = 0.01

        def prepare(self, context):
            self.held = []

        def execute(self, tuple, collector):
            self.held.append(tuple)

        def tick(self, collector):
            if len(self.held) == 4:
                collector.emit(b"four", anchors=self.held)
                for each in self.held:
                    collector.ack(each)
                self.held.clear()

    outcome = any_order(Window(), 4)
    assert [(each.value, each.anchors) for each in outcome.emitted] == [(b"four", (0, 1, 2, 3))]
    assert (outcome.acked, outcome.open) == ({0, 1, 2, 3}, set())


def ack_twice(tuple, collector):
    collector.ack(tuple)
    collector.ack(tuple)


def emit_late(tuple, collector):
    collector.ack(tuple)
    collector.emit(b"x", anchors=tuple)


def emit_elsewhere(tuple, collector):
    collector.emit(b"x", anchors=tuple, topic="nowhere")


@pytest.mark.parametrize(
    ("does", "error"), [(ack_twice, AckedTwice), (emit_late, EmitAfterAck), (emit_elsewhere, WrongTopic)]
)
def test_misuse_ends_the_run(any_order: Run, does, error):
    class Wrong(Bolt):
        def execute(self, tuple, collector):
            does(tuple, collector)

    with pytest.raises(error):
        any_order(Wrong(), 1)


def test_what_a_double_takes_away_is_dropped_and_acking_it_says_nothing():
    class Hold(Bolt):
        def execute(self, tuple, collector):
            self.held, self.collector = tuple, collector

        def drop(self, tuples):
            self.dropped = tuples

    bolt = Hold()
    double = BoltDouble(bolt)
    double.give(b"x")
    double.take_away()
    bolt.collector.ack(bolt.held)
    double.tick()
    assert bolt.dropped == [bolt.held]
    assert (double.acked, set(double.open), double.in_hand) == (set(), {0}, [])


def test_a_batch_fails_one_tuple_and_acks_the_others(run: Run):
    class Batch(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit_many(
                [each.value for each in tuples], tuples, keys=[b"k"] * len(tuples), headers=[("h", b"1")]
            )
            for each in tuples:
                if each.value == b"1":
                    collector.fail(each, "not one")

    outcome = run(Batch(), 4)
    assert by_value(outcome) == [Emission("b", b"%d" % n, b"k", [("h", b"1")], (n,)) for n in range(4)]
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 2, 3}, {1: "not one"}, {1})


def test_a_batch_worked_on_by_columns_closes_all_trees_but_those_it_fails_after(run: Run):
    class Columns(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit_many([value + b"!" for value in tuples.values], tuples, keys=tuples.keys)
            for at, value in enumerate(tuples.values):
                if value == b"1":
                    collector.fail(tuples[at], "not one")

    outcome = run(Columns(), 4)
    assert [emission.value for emission in by_value(outcome)] == [b"%d!" % number for number in range(4)]
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 2, 3}, {1: "not one"}, {1})


def test_a_batch_that_emits_nothing_by_columns_is_acked_whole(run: Run):
    class Nothing(BatchBolt):
        def execute(self, tuples, collector):
            assert len(tuples) == len(tuples.values)

    assert run(Nothing(), 3).acked == {0, 1, 2}


def test_several_children_of_a_batch_in_two_topics_close_their_trees(run: Run):
    class Fan(BatchBolt):
        def execute(self, tuples, collector):
            for topic in ("b", "c", "b"):
                collector.emit_many([each.value for each in tuples], tuples, topic=short(topic, tuples[0]))

    outcome = run(Fan(), 3, emits=("b", "c"))
    assert (len(outcome.emitted), outcome.acked, outcome.open) == (9, {0, 1, 2}, set())


def test_an_exception_of_a_batch_fails_all_of_it(run: Run):
    class Broken(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit_many([each.value for each in tuples], tuples)
            raise ValueError("whole batch")

    outcome = run(Broken(), 3)
    assert outcome.failed == dict.fromkeys(range(3), "ValueError: whole batch")
    assert (outcome.acked, outcome.open) == (set(), {0, 1, 2})


def test_one_child_of_several_tuples_of_a_batch_holds_all_their_trees(run: Run):
    class Join(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit(b"all", anchors=tuples)
            collector.emit(b"none", anchors=())

    outcome = run(Join(), 3)
    assert sorted(sum((each.anchors for each in outcome.emitted), ())) == [0, 1, 2]
    assert (outcome.acked, outcome.open) == ({0, 1, 2}, set())


def test_a_table_goes_in_and_filtered_exploded_and_grouped_tables_come_out(run: Run):
    class Tables(ArrowBolt):
        def execute(self, table, collector):
            odd = table.filter(pc.equal(table["offset"], 1))
            collector.emit(odd.set_column(odd.column_names.index("key"), "key", pa.array([b"k"] * len(odd))))
            numbers = table["row"].to_pylist()
            collector.emit_many(pa.array([b"twice"] * 2 * len(table)), numbers * 2)
            collector.emit(pa.table({"value": [b"all"], "row": [numbers]}))
            for row in numbers:
                if table["value"][row].as_py() == b"2":
                    collector.fail(row, "not two")

    outcome = run(Tables(), 4)
    values = Counter(each.value for each in outcome.emitted)
    assert (values[b"1"], values[b"twice"]) == (1, 8)
    assert [(each.key, each.anchors) for each in outcome.emitted if each.value == b"1"] == [(b"k", (1,))]
    of_all = [
        each.anchors for each in outcome.emitted if each.value == b"all"
    ]  # the broker may cut them apart
    assert sorted(chain.from_iterable(of_all)) == [0, 1, 2, 3]
    assert (outcome.acked, outcome.failed, outcome.open) == ({0, 1, 3}, {2: "not two"}, {2})


def test_an_exception_of_a_table_fails_all_of_it(run: Run):
    class Broken(ArrowBolt):
        def execute(self, table, collector):
            raise ValueError("whole table")

    assert run(Broken(), 2).failed == dict.fromkeys(range(2), "ValueError: whole table")


@pytest.mark.parametrize(
    ("does", "error"),
    [
        (lambda table, c: c.emit(table.drop_columns("row")), BadTable),
        (lambda table, c: c.emit_many([b"x"], [len(table)]), BadTable),
        (lambda table, c: c.emit_many([b"x"], [None]), BadTable),
        (lambda table, c: c.emit_many([b"x"], [[]]), BadTable),
        (lambda table, c: c.emit_many([b"x"], []), UnevenBatch),
        (lambda table, c: c.emit(table, topic="nowhere"), WrongTopic),
        (lambda table, c: c.emit(table, headers=[(HEADER, b"")]), ReservedHeader),
        (lambda table, c: [c.fail(0, "r"), c.fail(0, "r")], AckedTwice),
        (lambda table, c: [c.fail(0, "r"), c.emit(table)], EmitAfterAck),
    ],
)
def test_misuse_of_a_table_ends_the_run(does, error):
    class Wrong(ArrowBolt):
        def execute(self, table, collector):
            try:
                does(table, collector)
            except Exception:
                pass

    with pytest.raises(error):
        BoltDouble(Wrong()).give(b"x")


def test_an_arrow_bolt_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setattr("acktree.producers.arrow.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"acktree\[arrow\]"):
        BoltDouble(ArrowBolt.__new__(type("Some", (ArrowBolt,), {"execute": lambda *_: None})))


def emit_uneven(tuples, collector):
    collector.emit_many([b"x"], [])


def emit_for_failed(tuples, collector):
    collector.fail(tuples[0], "r")
    collector.emit_many([b"x"], tuples[:1])


def fail_twice(tuples, collector):
    collector.fail(tuples[0], "r")
    collector.fail(tuples[0], "r")


def emit_whole_after_a_failure(tuples, collector):
    collector.fail(tuples[0], "r")
    collector.emit_many([b"x"], tuples)


@pytest.mark.parametrize(
    ("does", "error"),
    [
        (emit_uneven, UnevenBatch),
        (emit_for_failed, EmitAfterAck),
        (emit_whole_after_a_failure, EmitAfterAck),
        (fail_twice, AckedTwice),
    ],
)
def test_misuse_of_a_batch_ends_the_run(run: Run, does, error):
    class Wrong(BatchBolt):
        def execute(self, tuples, collector):
            does(tuples, collector)

    with pytest.raises(error):
        run(Wrong(), 1)


def test_a_batch_kept_after_its_execute_takes_no_children():
    class Keeps(BatchBolt):
        kept = None

        def execute(self, tuples, collector):
            if self.kept is not None:
                collector.emit_many(self.kept.values, self.kept)
            self.kept = tuples

    double = BoltDouble(Keeps(), emits=["b"])
    double.give(b"a")
    with pytest.raises(EmitAfterAck):
        double.give(b"b")
