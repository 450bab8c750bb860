"""What a stage writes carries the trace of the source record it was made from, whatever its plan."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from acktree.wire.header import decode_header, find_header
from acktree.wire.ids import origin_of
from acktree.wire.trace_context import TraceContext, context_of, span_of_emission, span_of_execution
from spark import declared
from spark.test_handoff import handoff_files
from spark.tester import DEADLINE_S, StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
RECORDS = 4_000
SPAN = "00f067aa0ba902b7"
PADDING = "x" * 40
Transform = Callable[[DataFrame], DataFrame]


def trace_id(number: int) -> str:
    return f"{number + 1:032x}"


def headers(number: int) -> list[tuple[str, str | bytes | None]]:
    """Return those of a source record: two of three have a trace, the others none or a broken one."""
    if number % 3 == 2:
        return [("traceparent", (None, b"broken", b"00-" + b"0" * 52)[number // 3 % 3])] if number % 2 else []
    state: list[tuple[str, str | bytes | None]] = [("tracestate", f"n={number}")] if number % 2 else []
    return [("other", b"1"), ("traceparent", f"00-{trace_id(number)}-{SPAN}-01"), *state]


def send(tester: StageTester, topic: str = "source") -> None:
    for number in range(RECORDS):
        value, place = f"{number} {number} {PADDING}", f"{tester.name}.{topic}"
        tester.producer.produce(place, value, partition=number % 2, headers=headers(number))
        tester.producer.poll(0)
    tester.producer.flush()


def written(tester: StageTester, topic: str, count: int) -> list[tuple[bytes, bytes, TraceContext | None]]:
    """Return value, acktree header and trace context of the tuples on a topic."""
    consumer = Consumer({"bootstrap.servers": tester.bootstrap, "group.id": f"{tester.name}.traces"})
    consumer.assign([TopicPartition(f"{tester.name}.{topic}", partition, 0) for partition in (0, 1)])
    found, deadline = [], time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, len(found)
        for message in consumer.consume(1_000, 0.5):
            assert message.error() is None
            own = find_header(message.headers()) or b""
            found.append((message.value() or b"", own, context_of(message.headers())))
    consumer.close()
    return found


def words(rows: DataFrame) -> DataFrame:
    return declared.words(rows).where(f"value != '{PADDING}'")


def check(tester: StageTester) -> None:
    """Check that each word of a record carries its trace, and that the parent is the record's emission."""
    found = written(tester, "a", 2 * RECORDS)
    assert len(found) == 2 * RECORDS
    for value, own, context in found:
        number = int(value)
        if number % 3 == 2:
            assert context is None
            continue
        assert context is not None, number
        (anchor,) = decode_header(own).anchors
        assert context.trace_id == trace_id(number)
        assert context.span_id == span_of_emission(anchor.root)
        assert context.state == (b"n=%d" % number if number % 2 else None)


PLANS: dict[str, Transform] = {
    "narrow": words,
    "shuffled": lambda rows: words(rows).repartition(3),
    "narrow, with the headers": lambda rows: words(rows).withColumn(
        "headers", f.expr("array(named_struct('key', 'mine', 'value', cast('1' as binary)))")
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_tuples_carry_the_trace_of_their_record_without_user_code(tester: StageTester, plan: str):
    send(tester)
    tester.start(lambda rows: {f"{tester.name}.a": PLANS[plan](rows)})
    tester.until_the_end()
    check(tester)
    assert tester.committed() == [RECORDS / 2, RECORDS / 2]
    assert not handoff_files(tester.query.id)


@pytest.mark.slow
def test_tuples_of_a_plan_declared_narrow_carry_the_trace(tester: StageTester):
    send(tester)
    declared.start(tester, words)
    tester.until_the_end()
    check(tester)
    assert not handoff_files(tester.query.id)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["narrow", "shuffled"])
def test_records_of_a_block_keep_their_own_traces(
    spark, bootstrap: str, unique: str, tmp_path, plan: str
) -> None:
    with StageTester.running(spark, bootstrap, unique, tmp_path, block=7) as tester:
        send(tester)
        tester.start(lambda rows: {f"{tester.name}.a": PLANS[plan](rows)})
        tester.until_the_end()
        check(tester)


def test_tuples_of_a_bolt_name_the_execution_and_the_users_own_header_wins(tester: StageTester):
    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        return {f"{tester.name}.a": PLANS["narrow"](rows)}

    send(tester)
    tester.start(transform)
    tester.until_the_end()
    own = f"00-{'f' * 32}-{SPAN}-00"

    def of_bolt(rows: DataFrame) -> DataFrame:
        place = f.format_string("%s/%d/%d", "topic", "partition", "offset")
        given = f"array(named_struct('key', 'traceparent', 'value', cast('{own}' as binary)))"
        mine = f.when(f.col("value") == f.lit(b"0"), f.expr(given))
        return rows.select(
            "anchors", f.concat("value", f.lit(" "), place).alias("value"), mine.alias("headers")
        )

    tester.start_bolt(of_bolt, "two", "")
    found = written(tester, "c", 2 * RECORDS)
    tester.query.stop()
    for value, header, context in found:
        text, _, place = value.decode().partition(" ")
        topic, partition, offset = place.split("/")
        number = int(text)
        if number == 0:
            assert context is not None
            assert context.parent == own.encode()
        elif number % 3 == 2:
            assert context is None
        else:
            assert context is not None, number
            assert context.trace_id == trace_id(number)
            assert context.span_id == span_of_execution("two", topic, int(partition), int(offset))
            assert origin_of(decode_header(header).anchors[0].root).offset == number // 2
