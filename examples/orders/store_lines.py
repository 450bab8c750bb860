"""The second bolt: writes lines to SQLite, each once, however often its order is replayed."""

import json
import os
import sqlite3

from acktree.producers import BatchBolt, BatchCollector, Context, TupleBatch, WriteOnce

TABLE = """
create table if not exists lines(
    id text, number integer, customer text, article text, quantity integer, cents integer
)
"""


class StoreLines(BatchBolt):
    """One transaction of the database per batch; the tuples are acked after its commit."""

    name = "store"

    def prepare(self, context: Context) -> None:
        self.database = sqlite3.connect(os.environ["ORDERS_DATABASE"])
        self.once = WriteOnce()
        self.once.create(self.database.cursor())
        self.database.execute(TABLE)

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        with self.database as transaction:
            cursor = transaction.cursor()
            for tup in tuples:
                line = json.loads(tup.value or b"")
                if self.once.first(cursor, tup, line["number"]):
                    cursor.execute(
                        "insert into lines values (:id, :number, :customer, :article, :quantity, :cents)",
                        {"customer": None, **line},
                    )

    def cleanup(self) -> None:
        self.database.close()
