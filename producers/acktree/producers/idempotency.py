"""Writes to a database that a replay does not repeat: a key for each, and a table of the keys written.

Invariant: a key is written in the transaction of the effect it stands for, so there are both or none. It
names the source topic's incarnation: what a topic or cluster that was made anew holds at the same place is
another record. A tuple has a key if its source record has coordinates that last and are its own: one of a
spout written in Python, or of one that tracks by block, has none.
"""

from typing import Any, Protocol

from acktree.producers.tuples import Tuple
from acktree.schemas.errors import AcktreeError


class NoLastingKey(AcktreeError):
    """The tuple descends from no source record that a replay would name again: use a key of your own."""


class Cursor(Protocol):
    """What is needed of a DB-API cursor."""

    rowcount: int

    def execute(self, sql: str, parameters: tuple[Any, ...] = (), /) -> Any: ...


def key_of(tuple: Tuple, part: str | int = "") -> str:
    """Return SPOUT/TOPIC@ID/PARTITION/OFFSET of a tuple's source record; several are joined by ``+``.

    ``ID`` is Kafka's id of the topic, which no other topic has had or will have.
    ``part`` tells apart what one source record writes several times: the tuple's place in its line, its word.

    Raises:
        NoLastingKey: see there.
    """
    origins = sorted(tuple.origins)
    if not origins or any(not origin.topic for origin in origins):
        raise NoLastingKey(f"{tuple!r} descends from no record of a source topic; use a key of your own")
    if (most := max(origin.block for origin in origins)) > 1:
        raise NoLastingKey(
            f"{tuple!r} descends from one of up to {most} records that share a root (block in the topology): "
            "its origin is theirs, too; use a key of your own"
        )
    places = (
        f"{origin.spout}/{origin.topic}@{origin.topic_id}/{origin.partition}/{origin.offset}"
        for origin in origins
    )
    return "+".join(places) + (f"#{part}" if part != "" else "")


class WriteOnce:
    """A table of what was written, beside the user's tables; for any database with ``on conflict``."""

    def __init__(self, placeholder: str = "?", table: str = "acktree_written") -> None:
        """``placeholder`` is the driver's: ``?`` for sqlite3, ``%s`` for psycopg."""
        self._create = (
            f"create table if not exists {table}"
            "(key text primary key, source text not null, position bigint not null)"
        )
        mark = placeholder
        self._insert = f"insert into {table} values ({mark}, {mark}, {mark}) on conflict do nothing"
        self._delete = f"delete from {table} where source = {mark} and position < {mark}"

    def create(self, cursor: Cursor) -> None:
        """Create the table unless it is there."""
        cursor.execute(self._create)

    def first(self, cursor: Cursor, tuple: Tuple, part: str | int = "") -> bool:
        """Tell whether this is written for the first time, and note it; write only if it is.

        Both belong in one transaction, which must be committed before the tuple is acked.

        Raises:
            NoLastingKey: see there.
        """
        key = key_of(tuple, part)
        first = min(tuple.origins)
        source = f"{first.spout}/{first.topic}/{first.partition}"
        cursor.execute(self._insert, (key, source, first.offset))
        return cursor.rowcount == 1

    def forget(self, cursor: Cursor, spout: str, topic: str, partition: int, frontier: int) -> int:
        """Delete the keys below a spout's committed offset, which nothing replays; return how many.

        Those of the topic's former incarnations at the same offsets go with them.
        """
        cursor.execute(self._delete, (f"{spout}/{topic}/{partition}", frontier))
        return cursor.rowcount
