"""What a bolt reads and writes by its formats, in the double; a malformed value hurts nobody else."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from acktree.producers import (
    ArrowBolt,
    AsyncBolt,
    BadHandler,
    BasicBolt,
    BatchBolt,
    Bolt,
    FormatUnavailable,
    Json,
    PayloadFormat,
    Text,
)
from acktree.producers.testing import BoltDouble


class PricedOrder(BaseModel):
    number: int
    cents: int = 0


@dataclass
class CentsTotal:
    cents: int


GOOD, BAD = b'{"number": 1, "cents": 7}', b'{"number": "x"}'


class BasicTotals(BasicBolt):
    reads_as, emits_as = PricedOrder, CentsTotal

    def execute(self, tup, emit):
        emit(CentsTotal(tup.payload.cents), key=b"k")


class HeldTotals(Bolt):
    reads_as, emits_as = PricedOrder, CentsTotal

    def execute(self, tup, collector):
        collector.emit(CentsTotal(tup.payload.cents), anchors=tup, key=b"k")
        collector.ack(tup)


class BatchTotals(BatchBolt):
    reads_as, emits_as = PricedOrder, CentsTotal

    def execute(self, tuples, collector):
        totals = [CentsTotal(order.cents) for order in tuples.payloads]
        collector.emit_many(totals, tuples, keys=[b"k"] * len(totals))


class AsyncTotals(AsyncBolt):
    reads_as, emits_as = PricedOrder, CentsTotal

    async def execute(self, tup, emit):
        await asyncio.sleep(0)
        emit(CentsTotal(tup.payload.cents), key=b"k")


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", [BasicTotals, HeldTotals, BatchTotals, AsyncTotals])
def test_a_malformed_value_fails_its_tuple_for_good_and_no_other(kind: type, exactly_once: bool) -> None:
    double = BoltDouble(kind(), exactly_once=exactly_once)
    double.give(GOOD, BAD, b"\xff", b"", GOOD)
    assert [(each.value, each.key) for each in double.emitted] == [(b'{"cents":7}', b"k")] * 2
    assert double.acked == {0, 4}
    assert set(double.failed) == double.rejected == {1, 2, 3}
    assert double.failed[1].startswith(
        "Undecodable: the value of in/0/1 cannot be read: number: Input should"
    )


@pytest.mark.parametrize("kind", [BasicTotals, HeldTotals, BatchTotals, AsyncTotals])
def test_a_batch_of_malformed_values_alone_fails_as_a_whole(kind: type) -> None:
    double = BoltDouble(kind())
    double.give(*[BAD] * 3)
    assert double.rejected == {0, 1, 2}
    double.give(GOOD)
    assert double.acked == {3}


class EchoPayload(BasicBolt):
    reads_as, emits_as = Json(), {"a": Json(), "b": Text(), "c": bytes}
    what: Any = ()

    def execute(self, tup, emit):
        for topic, payload in self.what or (("a", tup.payload),):
            emit(payload, topic=topic)


def echo(*what: Any) -> BoltDouble:
    made = EchoPayload()
    made.what = what
    return BoltDouble(made, emits=("a", "b", "c"))


def test_a_tombstone_and_bytes_stay_what_they_are() -> None:
    double = echo()
    double.give(None, b'"text"', b"[1]")
    assert [each.value for each in double.emitted] == [None, b'"text"', b"[1]"]
    double = echo(("a", b"raw"), ("a", None), ("b", "text"), ("c", b"x"))
    double.give(b"1")
    assert [each.value for each in double.emitted] == [b"raw", None, b"text", b"x"]


@pytest.mark.parametrize(
    ("topic", "payload", "text"),
    [
        ("a", object(), "a object cannot be written to 'a'"),
        ("b", 7, "a int cannot be written to 'b': TypeError: not text but int"),
        ("b", "\ud800", "a str cannot be written to 'b'"),
        ("c", 7, "a value must be bytes, str or None, not int"),
    ],
)
def test_what_cannot_be_written_fails_its_tuple_and_may_be_tried_again(
    topic: str, payload: Any, text: str
) -> None:
    double = echo((topic, payload))
    double.give(b"1")
    assert double.failed[0].startswith(f"NotSerializable: {text}")
    assert (double.rejected, double.emitted) == (set(), [])


def test_a_row_of_a_batch_that_cannot_be_written_fails_its_tuple_alone() -> None:
    class TotalRows(BatchBolt):
        emits_as = CentsTotal

        def execute(self, tuples, collector):
            collector.emit_many([CentsTotal(1), object(), CentsTotal(2)], tuples)

    double = BoltDouble(TotalRows())
    double.give(b"0", b"1", b"2")
    assert [each.value for each in double.emitted] == [b'{"cents":1}', b'{"cents":2}']
    assert (double.acked, set(double.failed)) == ({0, 2}, {1})


class AwayFormat(PayloadFormat):
    def decode(self, value, topic):
        raise FormatUnavailable("the registry does not answer")

    def encode(self, payload, topic):
        raise FormatUnavailable("the registry does not answer")


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("kind", [BasicTotals, HeldTotals, BatchTotals, AsyncTotals])
@pytest.mark.parametrize("side", ["reads_as", "emits_as"])
def test_a_service_that_is_away_fails_no_tuple_and_stops_the_worker(
    kind: type, side: str, swallows: bool
) -> None:
    """Even if the bolt swallows the error, nothing is acked."""
    given: dict[str, Any] = {side: AwayFormat()}
    if swallows and kind is BasicTotals:

        def execute(self, tup, emit):
            try:
                kind.execute(self, tup, emit)
            except Exception:
                return

        given["execute"] = execute
    double = BoltDouble(type("Cut", (kind,), given)())
    with pytest.raises(FormatUnavailable, match="does not answer"):
        double.give(GOOD, GOOD)
    assert (double.acked, double.failed) == (set(), {})


def test_a_mistake_in_a_format_is_not_taken_for_a_malformed_value() -> None:
    class BrokenFormat(PayloadFormat):
        def decode(self, value, topic):
            raise TypeError("its own mistake")

        def encode(self, payload, topic):
            return b""

    double = BoltDouble(type("Copy", (BasicTotals,), {"reads_as": BrokenFormat()})())
    double.give(GOOD)
    assert double.failed == {0: "TypeError: its own mistake"}
    assert double.rejected == set()


def test_payload_without_a_format_says_what_to_declare() -> None:
    class PlainPayload(BasicBolt):
        def execute(self, tup, emit):
            emit(tup.payload)

    double = BoltDouble(PlainPayload())
    double.give(b"a")
    assert "has reads_as; its value is in tup.value" in double.failed[0]


class StrangeKind:
    pass


@pytest.mark.parametrize(
    ("kind", "members", "text"),
    [
        (BasicBolt, {"reads_as": StrangeKind}, "values cannot be read as StrangeKind"),
        (BatchBolt, {"emits_as": {"out": StrangeKind}}, "values cannot be read as StrangeKind"),
        (ArrowBolt, {"reads_as": PricedOrder}, "leave reads_as and emits_as out"),
    ],
)
def test_a_format_that_cannot_be_is_refused_at_the_start(
    kind: type, members: dict[str, Any], text: str
) -> None:
    made = type("Made", (kind,), {"execute": lambda *_: None, **members})()
    with pytest.raises(BadHandler, match=text):
        BoltDouble(made)
