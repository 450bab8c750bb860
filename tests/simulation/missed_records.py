"""Checks that each reader of a tuple topic executes each record of it, tracked or not.

Invariant: a reader is done with a record if all that one execution of it has emitted, anchored or not, is in
the log; or if its user code has failed the record, or never finished it. Nothing else excuses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.log import StoredRecord
from acktree.wire.control_records import Ack
from acktree.wire.header import HEADER, decode_header
from simulation.repeats import Place

FIRST_VERSION = 1
"""The version of a topology that each worker knows when it begins."""
HELD_TOO_LONG = "held longer than the message timeout"
"""The reason that a worker gives where user code did not finish a tuple in time."""


class AnyExecution(Protocol):
    """One execution of a record."""

    @property
    def emitted(self) -> list[bytes]:
        """The values of all its children."""


@dataclass(eq=False)
class EveryRecord:
    """See the module."""

    found: list[str] = field(default_factory=list)
    """Promises that are broken."""
    excused: set[tuple[str, Place]] = field(default_factory=set)
    """What user code has failed, or raised for."""
    held: set[tuple[str, Place]] = field(default_factory=set)
    """What user code has kept in hand for long, or for good."""
    _held_too_long: list[tuple[str, Place]] = field(default_factory=list)
    _too_late: set[tuple[str, int]] = field(default_factory=set)
    """Bolts with the roots of these: a worker says it of one tuple of a root."""

    def has_excuse(self, bolt: str, place: Place) -> bool:
        """Return whether user code has ever failed, raised for, or kept a record."""
        return (bolt, place) in self.excused or (bolt, place) in self.held

    def add_ack(self, ack: Ack) -> None:
        """Record the fails by which workers say that a tuple stayed in hand."""
        for fail in ack.fails:
            if fail.reason == HELD_TOO_LONG and fail.failed_tuple is not None:
                topic, partition, offset, _ = fail.failed_tuple
                bolt = ack.task.partition("@")[0]
                self._held_too_long.append((bolt, (topic, partition, offset)))
                self._too_late.add((bolt, fail.root))

    def check(
        self,
        cluster: Cluster,
        readers: Mapping[str, Sequence[str]],
        executions: Mapping[tuple[str, Place], Sequence[AnyExecution]],
        written: set[bytes],
    ) -> str:
        """Return what was not executed in the end, or stayed in hand, "" if everything was."""
        for bolt, place in self._held_too_long:
            if (bolt, place) not in self.held:
                return f"{bolt} has finished {place}, and its worker kept it in hand"
        excused = self.excused.union(self._held_too_long)
        for topic, bolts in readers.items():
            for log in cluster.topics[topic].partitions:
                for record in log.records:
                    if record.is_control or not record.is_committed:
                        continue
                    place = topic, log.number, record.offset
                    for bolt in bolts:
                        if (bolt, place) in excused or self._is_too_late(bolt, place, record):
                            continue
                        found = executions.get((bolt, place), ())
                        if not found and _may_be_rejected(record):
                            continue
                        if not any(written.issuperset(each.emitted) for each in found):
                            what = "what it emitted is not in the log" if found else "it was never executed"
                            return f"{bolt} is done with {place} {(record.value or b'').decode()}, and {what}"
        return ""

    def _is_too_late(self, bolt: str, place: Place, record: StoredRecord) -> bool:
        """Return whether a tuple was in hand when another one of its root was there too long."""
        header = dict(record.headers).get(HEADER) if (bolt, place) in self.held else None
        anchors = () if header is None else decode_header(header).anchors
        return any((bolt, anchor.root) in self._too_late for anchor in anchors)


def _may_be_rejected(record: StoredRecord) -> bool:
    """Return whether a worker may not know the version in a record's header yet.

    Its root then never counts as acked, or the checker says so; a root of an older run need not fail.
    """
    header = dict(record.headers).get(HEADER)
    return header is not None and decode_header(header).version > FIRST_VERSION
