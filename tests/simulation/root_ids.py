"""Remembers which emission each root id of a source record was used for: none is ever used for another one.

A batch of Spark that is run again is the same emission. One in Python is what a committed transaction holds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.producers.ledger.partitions.blocks import BlockRange
from acktree.testing.kafka.broker.log import Outcome, StoredRecord
from acktree.wire.codec import decode_ack_init
from acktree.wire.ids import generation_of, origin_of, root_id


@dataclass(slots=True)
class RootIds:
    """See the module; ``found`` says which were used again."""

    spout: str
    """Its transactional ids are this and the number of a task."""
    found: list[str] = field(default_factory=list)
    _emissions: dict[int, str] = field(default_factory=dict)
    _open: list[StoredRecord] = field(default_factory=list)

    def planned(self, batch: PlannedBatch) -> None:
        """Record a batch that Spark has logged."""
        self._use(_roots_of(batch), f"batch {batch.number:x}")

    def appended(self, record: StoredRecord) -> None:
        """Record an init; it counts if a stage in Python wrote it, once its transaction is committed."""
        group, _, task = record.producer.rpartition(".")
        if group == self.spout and task.isdecimal():
            self._open.append(record)

    def look(self) -> None:
        """Look which transactions have ended."""
        waiting, self._open = self._open, []
        for record in waiting:
            if record.transaction is not None and record.transaction.outcome is Outcome.OPEN:
                self._open.append(record)
            elif record.is_committed:
                roots = decode_ack_init(record.value or b"").inits["root"].tolist()
                self._use(roots, f"init {record.offset} by {record.producer} at {record.timestamp_ms}")

    def _use(self, roots: Iterable[int], emission: str) -> None:
        for root in roots:
            if (before := self._emissions.setdefault(root, emission)) != emission:
                self.found.append(f"root {origin_of(root)} is used in {emission}, and was in {before}")


def _roots_of(batch: PlannedBatch) -> Iterator[int]:
    for each in (*batch.ranges, *batch.again):
        blocks, offset = BlockRange(each.start, each.end, each.block, each.run), each.start
        while offset < each.end:
            yield root_id(each.slot, generation_of(each.run, 0), offset)
            offset = blocks.block_of(offset).stop
    for group in batch.replays:
        for offset in group.offsets:
            yield root_id(group.slot, group.generation, offset)
