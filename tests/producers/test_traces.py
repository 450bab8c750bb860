"""A child carries the trace of the tuple it was emitted for; the execution that emits it is its parent."""

import logging

import pytest

from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.testing import INPUT, BoltDouble
from acktree.wire.trace_context import MAX_STATE_BYTES, context_of, span_of_execution

TRACE, OTHER_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()
OTHER = f"00-{OTHER_TRACE}-b7ad6b7169203331-00".encode()
TRACED = [("traceparent", PARENT), ("tracestate", b"vendor=1")]


class TracedBasic(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value)


class TracedByHand(Bolt):
    def execute(self, tup, collector):
        collector.emit(tup.value, anchors=tup)
        collector.ack(tup)


class TracedAsync(AsyncBolt):
    async def execute(self, tup, emit):
        emit(tup.value)


class TracedOneByOne(BatchBolt):
    def execute(self, tuples, collector):
        for tup in tuples:
            collector.emit(tup.value, anchors=tup)


class TracedColumns(BatchBolt):
    def execute(self, tuples, collector):
        collector.emit_many(tuples.values, tuples)


class TracedTable(BatchBolt):
    def execute(self, tuples, collector):
        table = tuples.table()
        collector.emit_many(table["value"], table["row"])


class TracedAllHeaders(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value, headers=tup.headers)


class TracedJoin(Bolt):
    """Holds tuples until there are as many as it needs, and emits one child of all of them."""

    needs = 3

    def prepare(self, context):
        self.held = []

    def execute(self, tup, collector):
        self.held.append(tup)
        if len(self.held) == self.needs:
            collector.emit(b"joined", anchors=self.held)
            for each in self.held:
                collector.ack(each)


KINDS = [TracedBasic, TracedByHand, TracedAsync, TracedOneByOne, TracedColumns, TracedTable, TracedAllHeaders]


def contexts(double: BoltDouble):
    return {emission.anchors: context_of(emission.headers) for emission in double.emitted}


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_of_every_kind_of_bolt_carries_the_trace_and_names_its_execution(kind, exactly_once):
    double = BoltDouble(kind(), exactly_once=exactly_once)
    double.give(b"before")
    double.give(b"a", b"b", headers=TRACED)
    double.give(b"after")
    double.close()
    found = contexts(double)
    assert found[(0,)] is None
    assert found[(3,)] is None
    for number in (1, 2):
        context = found[(number,)]
        assert (context.trace_id, context.flags, context.state) == (TRACE, "01", b"vendor=1")
        assert context.span_id == span_of_execution("bolt", INPUT, 0, number)
    assert double.open == {}


def test_a_child_of_several_tuples_has_the_first_trace_among_them():
    double = BoltDouble(TracedJoin())
    double.give(b"none")
    double.give(b"first", headers=[("traceparent", OTHER)])
    double.give(b"second", headers=TRACED)
    context = contexts(double)[(0, 1, 2)]
    assert (context.trace_id, context.flags, context.state) == (OTHER_TRACE, "00", None)
    assert context.span_id == span_of_execution("bolt", INPUT, 0, 1)


def test_a_tuple_held_since_before_the_first_trace_may_get_a_traced_sibling():
    double = BoltDouble(TracedJoin())
    double.give(b"held")
    double.give(b"late", b"later", headers=TRACED)
    assert contexts(double)[(0, 1, 2)].trace_id == TRACE


@pytest.mark.parametrize("kind", ["emit", "emit_many"])
def test_the_bolts_own_traceparent_wins(kind):
    class TracedOwn(BatchBolt):
        def execute(self, tuples, collector):
            if kind == "emit":
                collector.emit(b"x", anchors=tuples[0], headers=[("traceparent", OTHER)])
            else:
                collector.emit_many(tuples.values, tuples, headers=[("traceparent", OTHER)])

    double = BoltDouble(TracedOwn())
    double.give(b"x", headers=TRACED)
    assert [emission.headers for emission in double.emitted] == [[("traceparent", OTHER)]]


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        b"",
        b"\xff\xfe",
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-" + b"0" * 16 + b"-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        PARENT.upper(),
        PARENT + b"-more",
        PARENT + b"\n",
        b"01" + PARENT[2:] + b"-" + b"x" * 1000,
    ],
)
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_malformed_traceparent_is_ignored_and_fails_nothing(kind, malformed):
    double = BoltDouble(kind())
    double.give(b"x", headers=[("traceparent", malformed), ("tracestate", b"vendor=1")])
    double.close()
    assert [emission.headers for emission in double.emitted] == [[]]
    assert (double.failed, double.acked) == ({}, {0})


def test_a_later_version_is_read_as_far_as_it_is_known():
    double = BoltDouble(TracedBasic())
    double.give(b"x", headers=[("traceparent", b"01" + PARENT[2:] + b"-what-comes")])
    assert contexts(double)[(0,)].parent.startswith(f"00-{TRACE}-".encode())


def test_a_state_longer_than_w3c_requires_is_not_passed_on():
    double = BoltDouble(TracedBasic())
    double.give(b"x", headers=[("traceparent", PARENT), ("tracestate", b"x" * (MAX_STATE_BYTES + 1))])
    assert contexts(double)[(0,)].state is None


def test_a_child_keeps_the_headers_that_the_bolt_gives():
    class TracedHeaders(BasicBolt):
        def execute(self, tup, emit):
            emit(b"x", headers=[("a", b"1"), ("tracestate", b"mine=1"), ("b", "2")])

    double = BoltDouble(TracedHeaders())
    double.give(b"x", headers=TRACED)
    ((emission,),) = [double.emitted]
    assert [pair for pair in emission.headers if pair[0] != "traceparent"] == [
        ("a", b"1"),
        ("tracestate", b"mine=1"),
        ("b", b"2"),
    ]
    assert context_of(emission.headers).trace_id == TRACE


def test_a_log_line_about_a_tuple_has_its_trace_id(caplog):
    class TracedFailing(BasicBolt):
        def execute(self, tup, emit):
            raise ValueError("no")

    with caplog.at_level(logging.WARNING, "acktree"):
        BoltDouble(TracedFailing()).give(b"traced", headers=TRACED)
        BoltDouble(TracedFailing()).give(b"plain")
    traced, plain = [line for line in caplog.records if line.action == "tuple_failed"]
    assert traced.trace_id == TRACE
    assert TRACE in traced.getMessage()
    assert not hasattr(plain, "trace_id")
    assert "trace" not in plain.getMessage()


def test_a_log_line_about_a_tuple_held_too_long_has_its_trace_id(caplog):
    double = BoltDouble(TracedJoin())
    double.give(b"x", headers=TRACED)
    with caplog.at_level(logging.WARNING, "acktree"):
        double.time_out()
    (line,) = [line for line in caplog.records if line.action == "held_too_long"]
    assert line.trace_id == TRACE
