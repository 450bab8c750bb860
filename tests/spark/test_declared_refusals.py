"""A plan that is declared narrow and is not: refused with a sentence, and nothing of it is written."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.spark import app
from acktree.spark.functions import merge_anchors
from acktree.spark.sink import NotABroadcastJoin
from acktree.spark.source import FORMAT, register
from acktree.spark.stage import Stage
from acktree.spark.tasks.writing.anchoring import BadColumn
from spark import declared
from spark.declared import lines, options, same, start
from spark.tester import DEADLINE_S, TOPOLOGY, StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
RECORDS = 3_000
"""Enough for a task per partition."""


def send(tester: StageTester) -> None:
    for partition in (0, 1):
        tester.send([f"{n:04d}".ljust(100, ".") for n in range(RECORDS)], partition)


def check_refused(tester: StageTester, match: str, roots: int = 0) -> None:
    """Check that the query ends with this sentence and nothing is written or committed."""
    with pytest.raises(Exception, match=match):
        tester.query.awaitTermination(DEADLINE_S)
    for _ in range(5):
        tester.read()
    assert (tester.tuples, len(tester.inits), tester.committed()) == ([], roots, [0, 0])


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("value").agg(merge_anchors().alias("anchors"))


SHAPES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "scanned twice": (lambda rows: same(rows).union(same(rows)), "reads the source more than once"),
    "coalesced": (lambda rows: same(rows).coalesce(1), "task 0 reads the records of read task 1"),
    "shuffled": (lambda rows: same(rows).repartition(3), "were read by another task"),
    "remembered": (lambda rows: same(rows.dropDuplicates(["value"])), "were read by another task"),
    "limited": (lambda rows: same(rows).limit(10), "were read by another task"),
}


QUICK = ("shuffled", "scanned twice")
"""The others take as long, and are refused at the same places, or where two sources of one query are."""


@pytest.mark.parametrize(
    "shape", [pytest.param(each, marks=[] if each in QUICK else [pytest.mark.slow]) for each in SHAPES]
)
def test_a_plan_of_another_shape_is_refused_and_stays_refused(tester: StageTester, shape: str) -> None:
    send(tester)
    plan, match = SHAPES[shape]
    for _ in range(2 if shape in ("scanned twice", "coalesced") else 1):
        start(tester, plan)
        check_refused(tester, match)


JOINS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "table first": lambda rows, table: table.crossJoin(rows),
    "rows first": lambda rows, table: rows.crossJoin(table),
    "as a product": lambda rows, table: table.hint("shuffle_replicate_nl").crossJoin(rows),
    "by a key": lambda rows, table: rows.join(table, rows["offset"] == table["id"]),
    "beside a broadcast": lambda rows, table: f.broadcast(table).crossJoin(rows).join(table.alias("t"), "id"),
    "in a function": lambda rows, table: table.crossJoin(rows.mapInArrow(lambda each: each, rows.schema)),
}


@pytest.mark.parametrize("join", JOINS)
def test_a_join_that_is_not_a_broadcast_is_refused_before_the_query_starts(
    tester: StageTester, join: str
) -> None:
    """Its table may grow while the query runs, and be read in parts from then on."""
    table = tester.spark.range(0, 4, 1, 1)
    with pytest.raises(NotABroadcastJoin, match=r"may read a record in several tasks \(Join"):
        start(tester, lambda rows: same(JOINS[join](rows, table)))


def test_a_writer_with_unchecked_joins_is_refused(tester: StageTester) -> None:
    tester.send(["a"])
    writer = same(lines(tester)).writeStream.format(FORMAT).options(**options(tester))
    tester.query = writer.option("checkpointLocation", str(tester.folder / "checkpoint")).start()
    check_refused(tester, "both check its joins")


@pytest.mark.slow
def test_a_small_batch_is_not_kept_as_state_in_the_task_that_reads_it(tester: StageTester) -> None:
    """To Spark one task is one partition, which needs no shuffle before a limit."""
    tester.send(["a", "b"])
    start(tester, lambda rows: same(rows).coalesce(1).limit(1).coalesce(1))
    with pytest.raises(Exception, match=r"plan is not narrow|no proof"):
        tester.query.awaitTermination(DEADLINE_S)


def test_a_plan_that_reads_nothing_is_refused_when_its_batch_has_ended(tester: StageTester) -> None:
    send(tester)
    start(tester, lambda rows: same(rows).limit(0))
    check_refused(tester, r"were read by another task|no proof")


def test_a_batch_written_by_something_else_is_not_taken_for_written(tester: StageTester) -> None:
    """Spark says that it has ended; at the next start, too."""
    send(tester)
    for _ in range(2):
        written = lines(tester).writeStream.format("noop")
        written = written.option("checkpointLocation", str(tester.folder / "checkpoint"))
        tester.query = declared.run(written)
        check_refused(tester, f"group {tester.name}.in.stage has no proof that 2 of its 2 tasks")
    tester.query = declared.write(tester, same(lines(tester)), folder="another checkpoint")
    tester.until_the_end()
    assert (len(tester.inits), tester.committed()) == (2 * RECORDS, [RECORDS, RECORDS])


def test_two_sources_of_one_query_are_refused(tester: StageTester) -> None:
    send(tester)
    tester.query = declared.write(tester, same(lines(tester)).union(same(lines(tester))))
    with pytest.raises(Exception, match=r"task . reads the records of read task ."):
        tester.query.awaitTermination(DEADLINE_S)


def test_rows_of_another_component_are_refused(tester: StageTester) -> None:
    send(tester)
    bolt = options(tester, bolt="two", spout="") | {"topic": f"{tester.name}.c"}
    tester.query = declared.write(tester, same(lines(tester)), of_sink=bolt)
    check_refused(tester, rf"were read for {tester.name}.in, not for {tester.name}.two")


@pytest.mark.slow
def test_a_source_without_the_declaration_is_refused(tester: StageTester) -> None:
    """Where rows of another component are refused."""
    send(tester)
    register(tester.spark)
    rows = tester.spark.readStream.format(FORMAT).options(**tester.options(spout="in")).load()
    tester.query = declared.write(tester, same(rows))
    check_refused(tester, "set plan=narrow on the source as well")


def test_foreach_batch_refuses_a_source_with_the_declaration(tester: StageTester) -> None:
    send(tester)
    stage = Stage(lambda rows: {f"{tester.name}.a": same(rows)}, tester.options(spout="in"))
    written = lines(tester).writeStream.foreachBatch(lambda rows, n: stage(rows, n) and None)
    written = written.option("checkpointLocation", str(tester.folder / "checkpoint"))
    tester.query = declared.run(written)
    check_refused(tester, "its query is written with foreachBatch")


def without(name: str) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: same(rows).drop(name)


WRONG: dict[str, tuple[Callable[[DataFrame], DataFrame], dict[str, str], str]] = {
    "no anchors": (without("anchors"), {}, "topic '.*' have no column 'anchors'"),
    "no value": (without("value"), {}, "have no column 'value'"),
    "type": (lambda rows: rows.withColumn("value", f.length("value")), {}, "'value' of type int; it must be"),
    "retry": (
        lambda rows: rows.withColumns({"fail": f.lit("x"), "retry": f.lit(0)}),
        {},
        "'retry' of type int; it must be boolean",
    ),
    "undeclared": (same, {"plan": "", "topic": ""}, "needs option plan=narrow, as does the source"),
    "another topic": (same, {"topic": "elsewhere"}, "topic=elsewhere is not what in emits"),
    "no topic": (same, {"topic": ""}, "name one topic with option 'topic'"),
}


REFUSED_BY = {"type": "the driver", "another topic": "a task"}
"""One of each kind; ``test_sink_options`` tries the others of the driver's without a query."""


@pytest.mark.parametrize(
    "mistake", [pytest.param(each, marks=[] if each in REFUSED_BY else [pytest.mark.slow]) for each in WRONG]
)
def test_mistakes_are_refused_in_one_sentence_before_anything_is_written(
    tester: StageTester, mistake: str
) -> None:
    tester.send(["a", "b"])
    plan, of_sink, match = WRONG[mistake]
    given = {name: value for name, value in (options(tester) | of_sink).items() if value}
    tester.query = declared.write(tester, plan(lines(tester)), of_sink=given)
    check_refused(tester, match)


@pytest.mark.parametrize("name", ["retry", "retry_after_s"])
def test_a_column_about_failed_rows_is_refused_without_a_column_fail(tester: StageTester, name: str) -> None:
    with pytest.raises(
        BadColumn, match=rf"topic '{tester.name}.a' have a column '{name}' and no column 'fail'"
    ):
        app.start(
            tester.spark,
            lambda rows: same(rows).withColumn(name, f.lit(None)),
            options(tester),
            tester.folder / "checkpoint",
        )


def test_a_component_that_emits_to_one_topic_needs_no_name_of_it(tester: StageTester) -> None:
    text = TOPOLOGY.format(name=tester.name, timeout_s=30, block=1).replace(f', "{tester.name}.b"]', "]", 1)
    apply_topology(tester.bootstrap, parse_topology(text.replace(f', "{tester.name}.b"]', "]")), {})
    tester.send(["a", "b"])
    given = {name: value for name, value in options(tester).items() if name != "topic"}
    tester.query = declared.write(tester, same(lines(tester)), of_sink=given)
    tester.until(lambda: len(tester.tuples) == 2)
