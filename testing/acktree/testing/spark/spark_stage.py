"""Makes a Spark stage of a test's function of one row, applied to record batches as Spark would.

Invariant: a row that the function makes keeps the anchors of the row it was made from, as in a DataFrame
whose transform passes the column on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from acktree.producers.collecting.collector import UserHeaders
from acktree.spark.stage import BadTransform

COLUMNS = ("value", "key", "headers", "fail", "retry", "retry_after_s", "topic")
"""What a row that the function returns as a dict may have; ``topic`` chooses among several."""
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class StageRow(NamedTuple):
    """A row of the source, with Spark's columns."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    timestampType: int
    anchors: bytes | None
    headers: list[dict[str, Any]] | None = None


RowFunction = Callable[[StageRow], Iterable[Any] | None]


class RowTransform:
    """Applies a function of one row; see ``TopologyTester``'s ``stages``."""

    def __init__(self, function: RowFunction, emits: Sequence[str]) -> None:
        self._function, self._emits = function, tuple(emits)

    def rows_for(self, topic: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the function makes of a batch for one topic.

        Raises:
            BadTransform: it returns what cannot be a row.
        """
        made = [
            (row, anchors)
            for given in _rows_of(batch)
            for row, anchors in self._made_of(given)
            if row["topic"] == topic
        ]
        rows = [row for row, _ in made]
        columns = {
            "value": pa.array([_bytes(row.get("value")) for row in rows], pa.binary()),
            "anchors": pa.array([anchors for _, anchors in made], pa.binary()),
            "key": pa.array([_bytes(row.get("key")) for row in rows], pa.binary()),
            "headers": pa.array([_headers(row.get("headers")) for row in rows], _HEADERS),
            "fail": pa.array([row.get("fail") for row in rows], pa.string()),
            "retry": _typed(rows, "retry", pa.bool_()),
            "retry_after_s": _typed(rows, "retry_after_s", pa.float64()),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _made_of(self, given: StageRow) -> Iterable[tuple[Mapping[str, Any], bytes | None]]:
        made = self._function(given)
        if isinstance(made, str | bytes | Mapping):
            raise BadTransform(
                f"the stage returned {made!r} for a row; it returns or yields rows: [{made!r}]"
            )
        for row in made or ():
            yield self._checked(row), given.anchors

    def _checked(self, row: Any) -> Mapping[str, Any]:
        fields = dict(row) if isinstance(row, Mapping) else {"value": row}
        if unknown := [name for name in fields if name not in COLUMNS]:
            raise BadTransform(
                f"the stage made a row with {unknown[0]!r}; must be one of: {', '.join(COLUMNS)}"
            )
        if "topic" not in fields and len(self._emits) == 1:
            fields["topic"] = self._emits[0]
        if fields.get("topic") not in self._emits:
            raise BadTransform(
                f"the stage made a row for topic {fields.get('topic')!r}; it emits: "
                f"{', '.join(self._emits) or 'nothing'}; choose one with the field topic"
            )
        return fields


def _rows_of(batch: pa.RecordBatch) -> list[StageRow]:
    return [StageRow(**row) for row in batch.to_pylist()]


def _typed(rows: Sequence[Mapping[str, Any]], name: str, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([row.get(name) for row in rows], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise BadTransform(f"the stage made a row with a {name} that is not {kind}: {error}") from error


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    raise BadTransform(f"the stage made a row with value or key {value!r}; must be bytes, str or None")


def _headers(pairs: UserHeaders | None) -> list[dict[str, Any]] | None:
    return None if pairs is None else [{"key": name, "value": _bytes(value)} for name, value in pairs]
