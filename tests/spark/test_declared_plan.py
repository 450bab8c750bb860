"""``writeStream.format("acktree")`` on a plan that is narrow, as the options say: exact, whatever fails."""

from collections import Counter

import pytest
from pyspark.sql import functions as f

from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.spark.sink import narrow_writer
from spark import declared
from spark.declared import (
    RowSource,
    first_batch_once_all_is_read,
    first_batch_only,
    options,
    raising_once,
    same,
    start,
    words,
)
from spark.test_handoff import handoff_files
from spark.tester import DEADLINE_S, TOPOLOGY, StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
RECORDS, GUILTY = 40_000, 31_000
ARROW_BATCH = 10_000
"""The most rows that Spark hands to a function at a time."""
VALUES = [f"{number:06d}".ljust(200, ".") for number in range(RECORDS)]


def values(tester: StageTester, topic: str = "a") -> Counter[bytes]:
    return Counter(value for short, value, _ in tester.tuples if short == topic)


def send_to_both(tester: StageTester, texts: list[str]) -> None:
    for partition in (0, 1):
        tester.send(texts[partition::2], partition)


def test_every_record_has_one_init_and_every_row_one_tuple_filtered_records_included(
    tester: StageTester,
) -> None:
    """Several tasks, over 64 KB each; then one small batch more, of one task."""
    texts = [f"{'-' if number % 3 == 0 else ''}{value} x" for number, value in enumerate(VALUES[:12_000])]
    send_to_both(tester, texts)
    start(tester, words)
    tester.until_the_end()
    expected = Counter(word.encode() for text in texts if text[0] != "-" for word in text.split(" "))
    assert values(tester) == expected
    assert len(tester.inits) == len(texts)
    assert tester.committed() == [6_000, 6_000]
    tester.send(["late one", "- gone"])
    start(tester, words)
    tester.until_the_end()
    assert values(tester) == expected + Counter([b"late", b"one"])
    assert (len(tester.inits), tester.committed()) == (len(texts) + 2, [6_002, 6_000])
    assert not handoff_files(tester.query.id)


def test_rows_joined_to_a_broadcast_table_are_written(tester: StageTester) -> None:
    tester.send(["a", "b"])
    table = f.broadcast(tester.spark.range(0, 4, 1, 4))
    start(tester, lambda rows: same(table.crossJoin(rows).join(table.alias("keyed"), "id")))
    tester.until_the_end()
    assert values(tester) == Counter({b"a": 4, b"b": 4})
    assert (len(tester.inits), tester.committed()) == (2, [2, 0])


def full(rows: declared.DataFrame) -> declared.DataFrame:
    headers = f.array(f.struct(f.lit("k").alias("key"), f.lit(b"v").alias("value")))
    fails = f.when(f.col("offset") == 1, "bad")
    made = rows.withColumn("key", f.lit(None)).withColumn("headers", headers).withColumn("fail", fails)
    return made.withColumn("value", f.upper(f.col("value").cast("string")))


@pytest.mark.parametrize("kind", ["batches", "rows"])
def test_all_columns_are_written_as_a_stage_writes_them(tester: StageTester, kind: str) -> None:
    """Row by row, too, as Spark 4.0 hands them over."""
    tester.send(["a", "b", "c"])
    rows = declared.lines(tester)
    if kind == "rows":
        tester.spark.dataSource.register(RowSource)
    tester.query = declared.write(tester, full(rows))
    tester.until(lambda: len(tester.inits) + len(tester.failed) >= 3 and len(values(tester)) == 2)
    assert values(tester) == Counter([b"A", b"C"])
    assert list(tester.failed.values()) == ["bad"]


@pytest.mark.slow
def test_a_function_that_raises_once_half_way_loses_no_record_and_writes_none_twice(
    tester: StageTester,
) -> None:
    flag = tester.folder / "raised"
    tester.send(VALUES)
    start(tester, lambda rows: raising_once(rows, flag, VALUES[GUILTY][:6].encode()))
    tester.until_the_end()
    assert flag.exists()
    assert values(tester) == Counter(value.encode() for value in VALUES)
    assert (len(tester.inits), tester.failed, tester.committed()) == (RECORDS, {}, [RECORDS, 0])


def test_a_batch_whose_function_ends_before_reading_all_its_rows_is_refused(tester: StageTester) -> None:
    """There are more than Spark reads ahead of a function: a batch, and what the sockets hold."""
    tester.send([value * 5 for value in VALUES])
    start(tester, lambda rows: same(rows).mapInArrow(first_batch_only, declared.SCHEMA))
    with pytest.raises(Exception, match="must take all rows"):
        tester.query.awaitTermination(DEADLINE_S)
    tester.read()
    assert (tester.inits, tester.tuples, tester.committed()) == ({}, [], [0, 0])


def test_rows_that_a_function_drops_after_reading_all_are_filtered_out(tester: StageTester) -> None:
    """A full batch of Arrow and a small one, which Spark reads ahead while the function waits."""
    texts = [f"{number:06d}" for number in range(ARROW_BATCH + 50)]
    tester.send(texts)
    group = f"{tester.name}.in"
    start(tester, lambda rows: same(rows).mapInArrow(first_batch_once_all_is_read(group), declared.SCHEMA))
    tester.until(lambda: len(tester.inits) == len(texts) and len(tester.tuples) > 0)
    assert len(tester.tuples) <= ARROW_BATCH
    assert tester.committed() == [0, 0], "nobody has acked the rows that were sent"


def test_a_bolt_acks_what_it_has_read_in_the_transaction_of_its_tuples(tester: StageTester) -> None:
    roots = tester.emit({n: [b"x", b"-"] for n in range(50)})
    register_of_bolt = options(tester, bolt="two", spout="") | {"topic": f"{tester.name}.c"}
    rows = declared.lines(tester, bolt="two", spout="")
    tester.query = declared.write(tester, words(rows), of_sink=register_of_bolt)
    tester.until(lambda: len(tester.acks) == len(roots) and len(values(tester, "c")) > 0)
    assert values(tester, "c") == Counter({b"x": 50})
    assert tester.query.awaitTermination(DEADLINE_S)


def test_a_bolt_that_starts_before_there_is_a_tuple_waits_for_one(tester: StageTester) -> None:
    """Its first batch has no task that reads; Spark makes one that writes."""
    of_bolt = options(tester, bolt="two", spout="") | {"topic": f"{tester.name}.c"}
    rows = words(declared.lines(tester, is_endless=True, bolt="two", spout=""))
    folder = str(tester.folder / "checkpoint")
    tester.query = narrow_writer(rows, of_bolt).option("checkpointLocation", folder).start()
    tester.until(lambda: any(each["batchId"] >= 0 for each in tester.query.recentProgress))
    roots = tester.emit({n: [b"x"] for n in range(5)})
    tester.until(lambda: len(tester.acks) == len(roots))
    assert values(tester, "c") == Counter({b"x": 5})


def test_a_batch_is_written_for_the_newest_version_of_the_topology(tester: StageTester) -> None:
    """The query's tasks know no version that is older than their batch."""
    tester.send(["a"])
    writer = narrow_writer(same(declared.lines(tester, is_endless=True)), options(tester))
    tester.query = writer.option("checkpointLocation", str(tester.folder / "checkpoint")).start()
    tester.until(lambda: len(tester.headers) == 1)
    text = TOPOLOGY.format(name=tester.name, timeout_s=60, block=1)
    apply_topology(tester.bootstrap, parse_topology(text), {})
    tester.send(["b"])
    tester.until(lambda: len(tester.headers) == 2)
    versions = [header.version for _, _, header in tester.headers]
    assert versions == [1, 2]
