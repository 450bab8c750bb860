"""The worker: counts words in SQLite, keyed by the tuple's origin, so that a replay counts once."""

import os
import sqlite3

from acktree.producers import BatchBolt, BatchCollector, Context, TupleBatch

TABLES = """
create table if not exists words(
    origin text, place integer, word text, primary key(origin, place)
) without rowid;
create table if not exists failures(origin text primary key);
"""


class CountWords(BatchBolt):
    """Stores each word once per origin, a batch in one transaction of the database.

    Fails one line in FAIL_EVERY on its first attempt, on purpose.
    """

    name = "count"

    def prepare(self, context: Context) -> None:
        self.fail_every = int(os.environ.get("WORDCOUNT_FAIL_EVERY", "0"))
        self.database = sqlite3.connect(os.environ["WORDCOUNT_DATABASE"])
        self.database.executescript("pragma journal_mode=wal; pragma synchronous=off;" + TABLES)

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        words: list[tuple[str, int, str]] = []
        failures: list[tuple[str]] = []
        for tup in tuples:
            origin = tup.origin
            assert origin is not None, "this topology tracks every tuple"
            key = f"{origin.topic_id}/{origin.partition}/{origin.offset}"
            assert tup.value is not None, "the stage writes words"
            place, _, word = tup.value.decode().partition(" ")
            fails = self.fail_every and place == "0" and origin.offset % self.fail_every == 0
            if fails and origin.attempt == 0:
                failures.append((key,))
                collector.fail(tup, f"line {origin.offset} of partition {origin.partition} fails on purpose")
            else:
                words.append((key, int(place), word))
        with self.database:
            self.database.executemany("insert or ignore into failures values (?)", failures)
            self.database.executemany("insert or ignore into words values (?, ?, ?)", words)

    def cleanup(self) -> None:
        self.database.close()
