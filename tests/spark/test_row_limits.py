"""Rows that their topic never takes, by their size or for want of a key: they fail their own records."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from acktree.producers.errors import MissingKey
from acktree.spark.tasks.writing.row_limits import RowLimit
from acktree.wire.ids import origin_of
from spark.tester import StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_row_too_large_fails_only_its_record_and_one_at_the_limit_is_written(
    tester: StageTester,
) -> None:
    """The broker takes 1,048,588 bytes a batch; librdkafka's own limit of 1,000,000 is not the topic's."""
    rows = ["small"] * 1_000 + ["huge", "large"] + ["small"] * 1_000
    tester.send(rows)
    sizes = {"huge": 1_200_000, "large": 1_048_000}

    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        text = f.col("value").cast("string")
        size = f.when(text == "huge", sizes["huge"]).when(text == "large", sizes["large"]).otherwise(5)
        return {f"{tester.name}.a": rows.select(f.rpad(text, size, ".").alias("value"), "anchors")}

    tester.start(transform, trigger="200 milliseconds")
    tester.until(lambda: len(tester.tuples) == len(rows) - 1 and len(tester.inits) == len(rows))
    tester.until(lambda: bool(tester.failed))
    assert [origin_of(root).offset for root in tester.failed] == [1_000]
    (reason,) = tester.failed.values()
    assert reason.startswith("TooLarge: a record of 1200")
    assert max(len(value) for _, value, _ in tester.tuples) == sizes["large"]
    tester.answer()
    tester.until(lambda: tester.committed() == [1_000, 0])
    assert tester.query.isActive


def test_rows_without_a_key_for_a_compacted_topic_are_refused_one_by_one() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"x"] * 3, "key": [b"k", None, b""], "anchors": [b""] * 3})
    refused = RowLimit("kept", 1_000, is_compacted=True).refused(batch)
    assert list(refused) == [1]
    assert isinstance(refused[1], MissingKey)
    assert RowLimit("kept", 1_000, is_compacted=False).refused(batch) == {}
