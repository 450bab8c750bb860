"""What the test of blocks over all roles runs: a transform, and a bolt that fails some records once."""

import os
import sqlite3

from pyspark.sql import DataFrame

from acktree.producers import BasicBolt, Context, Emit, Tuple


def same(rows: DataFrame) -> DataFrame:
    return rows.select("value", "anchors")


class RecordExecutions(BasicBolt):
    """Records each execution in SQLite; fails every thousandth record in its first emission."""

    name = "keep"

    def prepare(self, context: Context) -> None:
        self.database = sqlite3.connect(os.environ["KEEP_DATABASE"], isolation_level=None)
        self.database.executescript(
            "pragma journal_mode=wal; pragma synchronous=off;"
            "create table if not exists executed(part integer, first integer, attempt integer, record text)"
        )

    def execute(self, tup: Tuple, emit: Emit) -> None:
        origin = tup.origin
        assert origin is not None, "this topology tracks every tuple"
        row = (origin.partition, origin.offset, origin.attempt, tup.value.decode())
        self.database.execute("insert into executed values (?, ?, ?, ?)", row)
        if int(tup.value) % 1_000 == 0 and origin.attempt == 0:
            raise ValueError("fails once, on purpose")

    def cleanup(self) -> None:
        self.database.close()
