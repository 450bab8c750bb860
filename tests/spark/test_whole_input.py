"""A task whose rows end early commits nothing: half an input is never taken for all of it.

The inputs are larger than what waits in the sockets between Spark and its Python workers (64 KiB), and what
makes the rows fails half way, once. Spark then closes the socket of the process that writes.
"""

import io
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from acktree.spark import app
from acktree.spark.runtime.whole_input import has_end_marker
from acktree.spark.stage import CUT_OFF
from spark.tester import DEADLINE_S, StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
RECORDS, GUILTY = 40_000, 31_000
VALUES = [f"{number:06d}".ljust(200, ".") for number in range(RECORDS)]
SCHEMA = "value binary, anchors binary"


def raising_once(rows: DataFrame, flag: Path) -> DataFrame:
    """Pass all rows, but raise once at a record far behind what the sockets hold."""

    def check(value: bytes) -> bytes:
        if value.startswith(VALUES[GUILTY][:6].encode()) and not flag.exists():
            flag.touch()
            raise ValueError("a fault that passes")
        return value

    return rows.select(f.udf(check, "binary")("value").alias("value"), "anchors")


def written(tester: StageTester, topic: str) -> Counter[bytes]:
    return Counter(value for short, value, _ in tester.tuples if short == topic)


def lost(tester: StageTester, topic: str) -> int:
    """Return how many records have no tuple on a topic."""
    return len({value.encode() for value in VALUES} - written(tester, topic).keys())


@pytest.mark.promise("a transform's function raises")
def test_a_function_that_raises_once_half_way_loses_no_record_and_writes_none_twice(
    tester: StageTester,
) -> None:
    flag = tester.folder / "raised"
    tester.send(VALUES)
    tester.start(lambda rows: {f"{tester.name}.a": raising_once(rows, flag)})
    tester.until_the_end()
    assert flag.exists()
    assert (lost(tester, "a"), written(tester, "a").total()) == (0, RECORDS)
    assert len(tester.inits) == RECORDS
    assert not tester.failed
    assert tester.committed() == [RECORDS, 0]


@pytest.mark.slow
def test_a_function_that_raises_once_before_a_shuffle_leaves_only_whole_trees(tester: StageTester) -> None:
    flag = tester.folder / "raised"
    tester.send(VALUES)
    tester.start(lambda rows: {f"{tester.name}.a": raising_once(rows, flag).repartition(2)})
    tester.until_the_end()
    assert flag.exists()
    assert set(tester.failed.values()) <= {CUT_OFF}
    assert lost(tester, "a") == 0
    assert tester.committed() == [RECORDS, 0]


@pytest.mark.slow
def test_without_transactions_a_function_that_raises_once_has_its_records_replayed(
    tester: StageTester,
) -> None:
    flag = tester.folder / "raised"
    tester.send(VALUES)
    options = tester.options(spout="in") | {"transactions": "false"}
    tester.query = app.start(
        tester.spark,
        lambda rows: {f"{tester.name}.a": raising_once(rows, flag)},
        options,
        tester.folder / "checkpoint",
        app.AVAILABLE_NOW,
    )
    tester.until_the_end()
    assert flag.exists()
    assert set(tester.failed.values()) == {CUT_OFF}
    assert lost(tester, "a") == 0
    assert tester.committed() == [RECORDS, 0]


@pytest.mark.slow
def test_a_bolts_function_that_raises_once_acks_no_tuple_whose_rows_are_not_written(
    tester: StageTester,
) -> None:
    flag = tester.folder / "raised"
    tester.send(VALUES)
    tester.start(lambda rows: {f"{tester.name}.a": rows}, trigger="200 milliseconds")
    tester.until(lambda: len(tester.tuples) == RECORDS)
    role = tester.options(bolt="two")
    bolt = app.start(
        tester.spark,
        lambda rows: {f"{tester.name}.c": raising_once(rows, flag)},
        role,
        tester.folder / "bolt",
        app.AVAILABLE_NOW,
    )
    assert bolt.awaitTermination(DEADLINE_S)
    assert bolt.exception() is None
    assert flag.exists()
    tester.until(lambda: len(tester.tuples) == 2 * RECORDS)
    assert (lost(tester, "c"), written(tester, "c").total()) == (0, RECORDS)


def test_a_function_that_does_not_read_all_its_rows_is_refused_and_commits_nothing(
    tester: StageTester,
) -> None:
    """The records it never asked for would have no init: nothing would ever finish or replay them.

    There are more than all sockets between the two processes hold, so the reading one cannot come to its end.
    """

    def first_batch_only(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)

    tester.send([value * 5 for value in VALUES])
    tester.start(
        lambda rows: {
            f"{tester.name}.a": rows.select("value", "anchors").mapInArrow(first_batch_only, SCHEMA)
        }
    )
    with pytest.raises(Exception, match=r"must take all rows|were cut off"):
        tester.query.awaitTermination(DEADLINE_S)
    tester.read()
    assert not tester.inits
    assert tester.committed() == [0, 0]


@pytest.mark.parametrize(
    ("sent", "is_whole"),
    [
        (b"\xff\xff\xff\xfc", True),
        (b"\xff", True),  # the rest of the word is still on its way
        (b"", False),
        (b"\xff\xff\xff\xff", False),  # the start of another message
        (b"\x00\x00\x00\x00", False),
    ],
)
def test_only_sparks_own_end_of_input_proves_that_rows_are_complete(sent: bytes, is_whole: bool) -> None:
    ours, sparks = socket.socketpair()
    with ours, ours.makefile("rb", 65536) as stream:
        assert isinstance(stream, io.BufferedReader)
        sparks.sendall(b"rows" + sent)
        sparks.close()
        assert stream.read(4) == b"rows"
        assert has_end_marker(stream) is is_whole
        assert stream.read() == sent, "the word is Spark's worker's to read"
