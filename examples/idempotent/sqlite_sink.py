"""A bolt that adds amounts up in SQLite, once for each source record, however often it is replayed."""

import os
import sqlite3

from acktree.producers import BasicBolt, Context, Emit, Tuple, WriteOnce


class SqliteSink(BasicBolt):
    """One transaction a tuple; the tuple is acked after the commit."""

    def prepare(self, context: Context) -> None:
        self.database = sqlite3.connect(os.environ["SINK_DATABASE"])
        self.once = WriteOnce()
        self.once.create(self.database.cursor())
        self.database.execute("create table if not exists totals(account text primary key, amount integer)")

    def execute(self, tup: Tuple, emit: Emit) -> None:
        account, amount = tup.value.decode().split()
        with self.database as transaction:
            if self.once.first(transaction.cursor(), tup, part=0):
                transaction.execute(
                    "insert into totals values (?, ?) "
                    "on conflict (account) do update set amount = totals.amount + excluded.amount",
                    (account, int(amount)),
                )

    def cleanup(self) -> None:
        self.database.close()
