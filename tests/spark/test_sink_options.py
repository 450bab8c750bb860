"""Mistakes in options and columns of ``writeStream.format("acktree")`` that show when its query starts."""

import pytest
from pyspark.sql.types import StructType

from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.spark.sink import JOINS_CHECKED, stream_writer
from acktree.spark.tasks.writing.anchoring import BadColumn

GIVEN = {
    JOINS_CHECKED: "true",
    "kafka.bootstrap.servers": "x",
    "topology": "t",
    "spout": "in",
    "plan": "narrow",
    "topic": "t.a",
}
ROWS = {"value": "binary", "anchors": "binary"}

WRONG: dict[str, tuple[dict[str, str], dict[str, str], type[Exception], str]] = {
    "no anchors": ({"value": "binary"}, {}, BadColumn, r"topic 't\.a' have no column 'anchors'"),
    "no value": ({"anchors": "binary"}, {}, BadColumn, "have no column 'value'"),
    "type": (ROWS | {"value": "integer"}, {}, BadColumn, "'value' of type int; it must be"),
    "retry": (
        ROWS | {"fail": "string", "retry": "integer"},
        {},
        BadColumn,
        "'retry' of type int; it must be boolean",
    ),
    "unchecked": (ROWS, {JOINS_CHECKED: ""}, BadOption, "both check its joins"),
    "undeclared": (
        ROWS,
        {"plan": "", "topic": ""},
        BadOption,
        "needs option plan=narrow, as does the source",
    ),
}


def schema_of(columns: dict[str, str]) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize("mistake", WRONG)
def test_a_writer_is_refused_in_one_sentence_before_its_query_starts(mistake: str) -> None:
    schema, changed, error, match = WRONG[mistake]
    given = {name: value for name, value in (GIVEN | changed).items() if value}
    with pytest.raises(error, match=match):
        stream_writer(given, schema_of(schema), False)


def test_a_writer_is_made_from_valid_options() -> None:
    assert stream_writer(GIVEN, schema_of(ROWS), False)
