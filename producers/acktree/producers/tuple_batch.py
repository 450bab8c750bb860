"""A batch of tuples as a BatchBolt gets it: a sequence of tuples, and their columns.

Invariant: a column has one element per tuple, in their order. The tuples are created when the first one is
accessed; a bolt that works on columns never pays for them.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from acktree.core.errors import how_to_install
from acktree.producers.errors import MissingExtra
from acktree.producers.tuples import ACKED, IN_HAND, Owner, Record, Tuple

if TYPE_CHECKING:
    from pyarrow import Table


class TupleBatch(Sequence[Tuple]):
    """At least one tuple; ``values`` and ``keys`` are their columns."""

    __slots__ = ("_collector", "_is_done", "_payloads", "_records", "_tuples", "anchors")

    def __init__(
        self,
        records: Sequence[Record],
        anchors: Sequence[bytes],
        collector: Owner,
        payloads: list[Any] | None = None,
    ) -> None:
        """``anchors`` are those in each record's header, 18 bytes per tree, b"" if untracked."""
        self.anchors = anchors
        self._records, self._collector = records, collector
        self._payloads = payloads
        self._tuples: list[Tuple] | None = None
        self._is_done = False

    @classmethod
    def of(cls, tuples: Sequence[Tuple], collector: Owner) -> "TupleBatch":
        """Return a batch of some tuples of another one."""
        made = cls([tup._record for tup in tuples], [tup._anchors for tup in tuples], collector)
        made._tuples = list(tuples)
        made._payloads = [tup.payload for tup in tuples]
        return made

    @property
    def values(self) -> list[bytes | None]:
        """The tuples' values; None for a record without one (a tombstone)."""
        return [record.value() for record in self._records]

    @property
    def payloads(self) -> list[Any]:
        """The values decoded by the bolt's ``reads_as``, or the values themselves; None for a tombstone."""
        return self.values if self._payloads is None else self._payloads

    @property
    def keys(self) -> list[bytes | None]:
        """The tuples' keys."""
        return [record.key() for record in self._records]

    def table(self) -> "Table":
        """Return the batch as a pyarrow table with a row per tuple. Needs the extra ``arrow``.

        Columns: row int32, value and key binary, both null where the record has none, topic string,
        partition int32, offset int64, timestamp_ms int64. ``emit_many`` takes the column ``row`` as anchors.

        Raises:
            MissingExtra: pyarrow is not installed; it ends the worker, and no tuple fails.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtra(f"tuples.table() needs pyarrow: {how_to_install('arrow')}") from error
        records = self._records
        columns = {
            "row": (range(len(records)), pyarrow.int32()),
            "value": (self.values, pyarrow.binary()),
            "key": (self.keys, pyarrow.binary()),
            "topic": ([record.topic() for record in records], pyarrow.string()),
            "partition": ([record.partition() for record in records], pyarrow.int32()),
            "offset": ([record.offset() for record in records], pyarrow.int64()),
            "timestamp_ms": ([record.timestamp()[1] for record in records], pyarrow.int64()),
        }
        return pyarrow.table({name: pyarrow.array(cells, kind) for name, (cells, kind) in columns.items()})

    @property
    def first(self) -> tuple[Record, bytes]:
        """The first tuple's record and anchors."""
        return self._records[0], self.anchors[0]

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, at: int) -> Tuple: ...
    @overload
    def __getitem__(self, at: slice) -> list[Tuple]: ...
    def __getitem__(self, at: int | slice) -> Tuple | list[Tuple]:
        return self._made()[at]

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self._made())

    def _made(self) -> list[Tuple]:
        if self._tuples is None:
            collector = self._collector
            self._tuples = [
                Tuple(record, anchors, collector)
                for record, anchors in zip(self._records, self.anchors, strict=True)
            ]
            for tup, payload in zip(self._tuples, self._payloads or (), strict=False):
                tup._payload = payload
            if self._is_done:
                self.finish()
        return self._tuples

    def with_deferred(self) -> Sequence[Tuple]:
        """Return the tuples in hand with children that were emitted one by one."""
        return [tup for tup in self._tuples or () if tup._deferred and tup._state is IN_HAND]

    def faulty(self) -> Sequence[Tuple]:
        """Return the tuples in hand that cannot be acked, such as those with a child that was not sent."""
        return [tup for tup in self._tuples or () if tup._fault and tup._state is IN_HAND]

    def in_hand(self) -> list[bool] | None:
        """Return for each tuple whether it was not failed; None if none was."""
        if self._tuples is None:
            return None
        found = [tup._state is IN_HAND for tup in self._tuples]
        return None if all(found) else found

    def finish(self) -> None:
        """Mark all tuples in hand as acked."""
        self._is_done = True
        for tup in self._tuples or ():
            if tup._state is IN_HAND:
                tup._state = ACKED
                if tup._hand is not None:
                    del tup._hand[tup.offset]
