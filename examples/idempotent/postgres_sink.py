"""A bolt that adds amounts up in PostgreSQL, once for each source record, however often it is replayed."""

import os

import psycopg

from acktree.producers import BatchBolt, BatchCollector, Context, WriteOnce
from acktree.producers.tuple_batch import TupleBatch

ADD = """
insert into totals values (%s, %s)
on conflict (account) do update set amount = totals.amount + excluded.amount
"""


class PostgresSink(BatchBolt):
    """One transaction a batch, with a savepoint for each tuple: one that cannot be written fails alone."""

    def prepare(self, context: Context) -> None:
        self.database = psycopg.connect(os.environ["SINK_DATABASE"], autocommit=True)
        self.once = WriteOnce("%s")
        self.once.create(self.database.cursor())
        self.database.execute("create table if not exists totals(account text primary key, amount bigint)")

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        with self.database.transaction():
            cursor = self.database.cursor()
            for tup in tuples:
                try:
                    with self.database.transaction():
                        if self.once.first(cursor, tup, part=0):
                            cursor.execute(ADD, tup.value.decode().split())
                except (psycopg.DataError, psycopg.ProgrammingError) as error:
                    collector.fail(tup, f"{type(error).__name__}: {error}")

    def cleanup(self) -> None:
        self.database.close()
