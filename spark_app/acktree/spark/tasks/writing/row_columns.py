"""Selects the columns that tuples are written from.

Invariant: a stage and a writer accept and refuse the same rows, with the same messages.
"""

from collections.abc import Sequence

from pyspark.sql.types import StructType

from acktree.spark.tasks.writing.anchoring import BadColumn

COLUMNS = {
    "value": ("binary", "string"),
    "anchors": ("binary",),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "fail": ("string",),
    "retry": ("boolean",),
    "retry_after_s": ("double", "float", "int", "bigint"),
}
"""What is taken from rows, and the types that can be written."""
OF_FAILED_ROWS = ("retry", "retry_after_s")
"""What is taken from rows with a reason in ``fail`` only."""


def written_columns(names: Sequence[str], target: str) -> list[str]:
    """Return which columns of rows for a target, such as ``topic 'words'``, are written.

    Raises:
        BadColumn: ``value`` or ``anchors`` is missing, or ``fail`` beside what says how a row fails.
    """
    missing = [name for name in ("value", "anchors") if name not in names]
    if missing:
        raise BadColumn(
            f"the rows for {target} have no column {missing[0]!r}; rows need value and anchors "
            "(carry anchors along from the source), and may have key, headers and fail"
        )
    how = [name for name in OF_FAILED_ROWS if name in names]
    if how and "fail" not in names:
        raise BadColumn(
            f"the rows for {target} have a column {how[0]!r} and no column 'fail', which holds the reason of "
            f"each row that fails. Add it; or rename {how[0]!r}, which controls the retry of such rows"
        )
    return [name for name in COLUMNS if name in names]


def check_columns(schema: StructType, target: str) -> list[str]:
    """Return which columns of rows are written; raise BadColumn for one that is missing or cannot be."""
    columns = written_columns(schema.names, target)
    check_types(schema, target)
    return columns


def check_types(schema: StructType, target: str) -> None:
    """Check the types of the columns that are written; raise BadColumn for one that cannot be."""
    for field in schema.fields:
        kind, wanted = field.dataType.simpleString(), COLUMNS.get(field.name)
        if wanted and kind not in wanted and kind != "void":
            raise BadColumn(
                f"the rows for {target} have a column {field.name!r} of type {kind}; "
                f"it must be {' or '.join(wanted)}"
            )
