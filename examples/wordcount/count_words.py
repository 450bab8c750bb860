"""The worker: counts words in SQLite, keyed by the tuple's origin, so that a replay counts once."""

import os
import sqlite3

from acktree.producers import BasicBolt, Context, Emit, Tuple

TABLES = """
create table if not exists words(
    origin text, place integer, word text, primary key(origin, place)
) without rowid;
create table if not exists failures(origin text primary key);
"""


class CountWords(BasicBolt):
    """Stores each word once per origin; fails one line in FAIL_EVERY on its first attempt, on purpose."""

    name = "count"

    def prepare(self, context: Context) -> None:
        self.fail_every = int(os.environ.get("WORDCOUNT_FAIL_EVERY", "0"))
        self.database = sqlite3.connect(os.environ["WORDCOUNT_DATABASE"], isolation_level=None)
        self.database.executescript("pragma journal_mode=wal; pragma synchronous=off;" + TABLES)

    def execute(self, tuple: Tuple, emit: Emit) -> None:
        origin = tuple.origin
        assert origin is not None, "this topology tracks every tuple"
        key = f"{origin.topic_id}/{origin.partition}/{origin.offset}"
        assert tuple.value is not None, "the stage writes words"
        place, _, word = tuple.value.decode().partition(" ")
        if self.fail_every and place == "0" and origin.attempt == 0 and origin.offset % self.fail_every == 0:
            self.database.execute("insert or ignore into failures values (?)", (key,))
            raise ValueError(f"line {origin.offset} of partition {origin.partition} fails once, on purpose")
        self.database.execute("insert or ignore into words values (?, ?, ?)", (key, int(place), word))

    def cleanup(self) -> None:
        self.database.close()
