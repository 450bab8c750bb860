"""Makes writes to a database idempotent: a key for each write, and a table of the written keys.

Invariant: a key is written in the transaction of its effect, so both are there or neither. It names the
source topic by its id: a recreated topic or cluster has another record at the same offset. A tuple has a key
if its source record has lasting coordinates, which is not so for a spout written in Python or one that tracks
by block.
"""

from typing import Any, Protocol

from acktree.producers.tuples import Tuple
from acktree.wire.errors import AcktreeError


class NoLastingKey(AcktreeError):
    """The tuple has no source record with lasting coordinates: pass your own key."""


class Cursor(Protocol):
    """The part of a DB-API cursor that WriteOnce needs."""

    rowcount: int

    def execute(self, sql: str, parameters: tuple[Any, ...] = (), /) -> Any: ...


def key_of(tup: Tuple, part: str | int = "") -> str:
    """Return SPOUT/TOPIC@ID/PARTITION/OFFSET of a tuple's source record; several are joined by ``+``.

    ``ID`` is Kafka's id of the topic, which is unique.
    ``part`` distinguishes several writes for one source record, such as by the index of a word in its line.

    Raises:
        NoLastingKey: the tuple has no source record with lasting coordinates.
    """
    origins = sorted(tup.origins)
    if not origins or any(not origin.topic for origin in origins):
        raise NoLastingKey(f"{tup!r} does not descend from a record of a source topic; use your own key")
    if (block := max(origin.block for origin in origins)) > 1:
        raise NoLastingKey(
            f"{tup!r} descends from one of up to {block} records that share a root (block in the "
            "topology), so its origin is not unique to it; use your own key"
        )
    places = (
        f"{origin.spout}/{origin.topic}@{origin.topic_id}/{origin.partition}/{origin.offset}"
        for origin in origins
    )
    return "+".join(places) + (f"#{part}" if part != "" else "")


class WriteOnce:
    """A table of written keys, beside the user's tables; for any database with ``on conflict``."""

    def __init__(self, placeholder: str = "?", table: str = "acktree_written") -> None:
        """``placeholder`` is the driver's: ``?`` for sqlite3, ``%s`` for psycopg."""
        self._create = (
            f"create table if not exists {table}"
            "(key text primary key, source text not null, position bigint not null)"
        )
        row = ", ".join([placeholder] * 3)
        self._insert = f"insert into {table} values ({row}) on conflict do nothing"
        self._delete = f"delete from {table} where source = {placeholder} and position < {placeholder}"

    def create(self, cursor: Cursor) -> None:
        """Create the table unless it exists."""
        cursor.execute(self._create)

    def first(self, cursor: Cursor, tup: Tuple, part: str | int) -> bool:
        """Insert the key of a write, and return whether it is the first one; only then write.

        Both belong in one transaction, which must be committed before the tuple is acked. ``part`` has no
        default: if all writes of a source record share one ``part``, only the first is written.

        Raises:
            NoLastingKey: the tuple has no source record with lasting coordinates.
        """
        key = key_of(tup, part)
        first = min(tup.origins)
        source = f"{first.spout}/{first.topic}/{first.partition}"
        cursor.execute(self._insert, (key, source, first.offset))
        return cursor.rowcount == 1

    def forget(self, cursor: Cursor, spout: str, topic: str, partition: int, frontier: int) -> int:
        """Delete the keys below an offset that the spout's group has committed; return how many.

        Wait until the bolt's group has committed the ends that its topics had when that offset was read: a
        worker that dies executes the inputs since its last commit again, though their records are done.
        Keys at the same offsets of former topics of the same name go as well.
        """
        cursor.execute(self._delete, (f"{spout}/{topic}/{partition}", frontier))
        return cursor.rowcount
