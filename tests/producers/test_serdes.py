"""What a bolt reads and emits by a Serde: every kind of bolt, in the double."""

import json
from dataclasses import dataclass

import pytest
from pydantic import BaseModel, Field

from acktree.producers import (
    AsyncBolt,
    BadHandler,
    BasicBolt,
    BatchBolt,
    Bolt,
    Json,
    RetryLater,
    Serde,
    Text,
)
from acktree.producers.testing import BoltDouble
from acktree.producers.worker.executing.bolt_kinds import check_bolt


class Order(BaseModel):
    name: str = Field(alias="order-name")
    count: int


@dataclass
class Line:
    text: str
    count: int


GOOD, NEXT = b'{"order-name":"a","count":1}', b'{"text":"a","count":2}'
POISON = b'{"order-name":"secret-name","count":"many"}'
NO_JSON = b"\xff\x00"
SECOND = b'{"order-name":"b","count":2}'


def line_of(order: Order | None) -> Line | None:
    return None if order is None else Line(order.name, order.count + 1)


class ReadsBasic(BasicBolt):
    reads_as, emits_as = Order, Line

    def execute(self, tup, emit):
        emit(line_of(tup.payload), key=tup.key)


class Hand(Bolt):
    reads_as, emits_as = Order, Line

    def execute(self, tup, collector):
        collector.emit(line_of(tup.payload), anchors=tup, key=tup.key)
        collector.ack(tup)


class Rows(BatchBolt):
    reads_as, emits_as = Order, Line
    batches = 0

    def execute(self, tuples, collector):
        self.batches += 1
        assert [tup.payload for tup in tuples] == tuples.payloads
        collector.emit_many([line_of(order) for order in tuples.payloads], tuples, keys=tuples.keys)


class Alone(BatchBolt):
    reads_as, emits_as = Order, Line

    def execute(self, tuples, collector):
        for tup in tuples:
            collector.emit(line_of(tup.payload), anchors=tup, key=tup.key)


class Concurrent(AsyncBolt):
    reads_as, emits_as = Order, Line

    async def execute(self, tup, emit):
        emit(line_of(tup.payload), key=tup.key)


KINDS = [ReadsBasic, Hand, Rows, Alone, Concurrent]
EXACTLY_ONCE = pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])


@EXACTLY_ONCE
@pytest.mark.parametrize("kind", KINDS)
def test_an_unreadable_value_is_rejected_and_its_neighbours_are_executed(kind, exactly_once):
    double = BoltDouble(kind(), exactly_once=exactly_once)
    double.give(GOOD, POISON, None, NO_JSON, SECOND, key=b"k")
    emitted = {each.anchors: (each.value, each.key) for each in double.emitted}
    second = b'{"text":"b","count":3}'
    assert emitted == {(0,): (NEXT, b"k"), (2,): (None, b"k"), (4,): (second, b"k")}
    assert double.acked == {0, 2, 4}
    assert double.rejected == {1, 3} == set(double.failed)
    assert set(double.open) == {1, 3}
    assert double.in_hand == []
    assert double.counters.executed == 5
    assert double.failed[1].startswith(
        "NotDeserializable: the value of in[0]@1 cannot be decoded as JSON of Order: count: "
    )
    assert "secret-name" not in double.failed[1]
    assert "in[0]@3" in double.failed[3]


def test_a_batch_with_poison_is_executed_once_and_a_batch_of_poison_alone_not_at_all():
    bolt = Rows()
    double = BoltDouble(bolt)
    double.give(*([GOOD] * 50), POISON, *([GOOD] * 50))
    assert bolt.batches == 1
    double.give(POISON, NO_JSON)
    assert bolt.batches == 1
    assert len(double.rejected) == 3


def test_the_payloads_of_a_batch_that_raises_stay_with_their_tuples_in_its_halves():
    class PickyReader(BatchBolt):
        reads_as = Json

        def execute(self, tuples, collector):
            assert 3 not in tuples.payloads
            collector.emit_many([b"%d" % number for number in tuples.payloads], tuples)

    double = BoltDouble(PickyReader())
    double.give(*(b"%d" % number for number in range(6)))
    assert {each.anchors: each.value for each in double.emitted} == {
        (number,): b"%d" % number for number in (0, 1, 2, 4, 5)
    }
    assert set(double.failed) == {3}
    assert double.rejected == set()


class Bad:
    """Has no place in a Line."""


@EXACTLY_ONCE
@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("base", [BasicBolt, Bolt, BatchBolt, AsyncBolt])
def test_a_tuple_whose_output_cannot_be_written_fails_even_if_its_bolt_swallows_it(
    base, swallows, exactly_once
):
    def handle(emit, good):
        try:
            emit(Line("x", 1) if good else Bad())
        except Exception:
            if not swallows:
                raise

    class WriterA(base):
        emits_as = Line

        if base is BasicBolt:

            def execute(self, tup, emit):
                handle(emit, tup.value == b"good")

        elif base is Bolt:

            def execute(self, tup, collector):
                handle(lambda line: collector.emit(line, anchors=tup), tup.value == b"good")
                collector.ack(tup)

        elif base is BatchBolt:

            def execute(self, tuples, collector):
                lines = [Line("x", 1) if tup.value == b"good" else Bad() for tup in tuples]
                collector.emit_many(lines, tuples)

        else:

            async def execute(self, tup, emit):
                handle(emit, tup.value == b"good")

    double = BoltDouble(WriterA(), exactly_once=exactly_once)
    double.give(b"good", b"bad", b"good")
    assert set(double.failed) == {1}
    assert double.rejected == set()
    assert "a Bad for out cannot be encoded as JSON of Line" in double.failed[1]
    assert double.acked == {0, 2}
    assert [each.anchors for each in double.emitted] == [(0,), (2,)]


def test_bytes_and_none_are_written_as_they_are_and_text_as_the_serde_says():
    class Mixed(BasicBolt):
        emits_as = Json

        def execute(self, tup, emit):
            for value in (b"raw", None, "text", {"a": [1, "ä"]}):
                emit(value)

    double = BoltDouble(Mixed())
    double.give(b"")
    assert [each.value for each in double.emitted] == [b"raw", None, b'"text"', '{"a":[1,"ä"]}'.encode()]


def test_without_a_serde_a_payload_is_the_value_and_an_object_is_refused():
    class Plain(BasicBolt):
        def execute(self, tup, emit):
            assert tup.payload == tup.value
            emit({})

    double = BoltDouble(Plain())
    double.give(b"a")
    assert "a value must be bytes, str or None, not dict" in double.failed[0]


def test_each_topic_may_have_its_own_serde():
    class JoinedPayloads(BasicBolt):
        reads_as = {"orders": Order, "names": str}  # noqa: RUF012
        emits_as = {"lines": Line, "words": Text()}  # noqa: RUF012

        def execute(self, tup, emit):
            if tup.topic == "names":
                emit(tup.payload.upper(), topic="words")
            else:
                emit(line_of(tup.payload), topic="lines")

    double = BoltDouble(JoinedPayloads())
    double.give(GOOD, topic="orders")
    double.give("bö".encode(), b"\xff", topic="names")
    assert [(each.topic, each.value) for each in double.emitted] == [
        ("lines", NEXT),
        ("words", "BÖ".encode()),
    ]
    assert double.rejected == {2}


def test_a_custom_serde_sees_topic_and_headers_and_may_ask_for_a_later_retry():
    class Own(Serde):
        def deserialize(self, value, topic, headers):
            if value == b"later":
                raise RetryLater(3)
            return value, topic, dict(headers)["version"]

    seen = []

    class ReaderB(BasicBolt):
        reads_as = Own()

        def execute(self, tup, emit):
            seen.append(tup.payload)

    double = BoltDouble(ReaderB())
    double.give(b"a", b"later", headers=[("version", b"2")])
    assert seen == [(b"a", "in", b"2")]
    assert double.retry_after_s == {1: 3.0}
    assert double.rejected == set()


@pytest.mark.parametrize("value", [b"", b"[" * 100_000, b"NaN", b'"\xed\xa0\x80"', b"9" * 5_000, b"{}{}"])
def test_malformed_json_does_not_end_the_worker(value):
    class ReaderC(BasicBolt):
        reads_as = Json

        def execute(self, tup, emit):
            raise AssertionError(tup.payload)

    double = BoltDouble(ReaderC())
    double.give(value)
    assert double.rejected == {0}


@pytest.mark.parametrize("payload", [float("nan"), {1, 2}, "\ud800", object()])
def test_a_value_that_is_not_json_is_not_written(payload):
    class WriterD(BasicBolt):
        emits_as = Json

        def execute(self, tup, emit):
            emit(payload)

    double = BoltDouble(WriterD())
    double.give(b"")
    assert "cannot be encoded as JSON" in double.failed[0]
    assert double.emitted == []


def test_a_model_is_written_with_the_names_that_it_is_read_with():
    serde = Json(Order)
    order = serde.deserialize(GOOD, "t", [])
    assert json.loads(serde.serialize(order, "t")) == json.loads(GOOD)
    assert serde.serialize({"order-name": "a", "count": 1}, "t") == GOOD


def test_a_meaningless_declaration_is_refused_at_the_start():
    def bolt(**declared):
        return type("Declared", (BasicBolt,), {"execute": lambda self, tup, emit: None, **declared})()

    for declared in (7, Bad, {"orders": 7}, {1: Json}):
        with pytest.raises(BadHandler):
            check_bolt(bolt(reads_as=declared))
        with pytest.raises(BadHandler):
            check_bolt(bolt(emits_as=declared))
    with pytest.raises(
        BadHandler, match="emits_as names 'lines', which is not a topic of the bolt in the topology: b"
    ):
        BoltDouble(bolt(emits_as={"lines": Json}), emits=["b"])


def test_a_table_has_the_bytes_of_readable_values_whatever_the_serdes_are():
    class Table(BatchBolt):
        reads_as = emits_as = Json

        def execute(self, tuples, collector):
            table = tuples.table()
            collector.emit_many(table["value"], table["row"])

    double = BoltDouble(Table(), emits=["out"])
    double.give(b'{"a": 1}', b"{", b"7")
    assert {emission.anchors: emission.value for emission in double.emitted} == {
        (0,): b'{"a": 1}',
        (2,): b"7",
    }
    assert (double.rejected, set(double.open)) == ({1}, {1})


def test_a_bug_in_a_serde_is_not_taken_for_an_unreadable_value():
    class Mistaken(Serde):
        def deserialize(self, value, topic, headers):
            raise TypeError("its own mistake")

    class ReadsByMistake(BasicBolt):
        reads_as = Mistaken()

        def execute(self, tup, emit):
            raise AssertionError(tup.payload)

    double = BoltDouble(ReadsByMistake())
    double.give(b"a")
    assert double.failed == {0: "TypeError: its own mistake"}
    assert double.rejected == set()
