"""Sends a stage's updates of its roots to the acker: resets, an init or an ack for each, a fail if rejected.

Invariant: a root that failed can never fold to zero: its init holds a random edge that nobody acks, or its
ack is withheld. So a late fail still decides. A root sent without a fail is complete: if it fails later,
either result is right, and the first one counts.
"""

from collections.abc import Mapping

import numpy as np

from acktree.core.kafka.settings import Settings
from acktree.core.topology.registry import History, read_history
from acktree.producers.collecting.arithmetic.packing import AckPacker, inits_of_tasks
from acktree.spark.tasks.producers import TaskOutput
from acktree.spark.tasks.writing.anchoring import RootFailure, RootUpdates
from acktree.wire.control_records import EntryArray
from acktree.wire.header import ANCHOR

ROOTS_PER_CHUNK = 65_536
"""Roots per step: the intermediate arrays stay in the processor's caches."""


class AckerUpdates:
    """Sends the inits and fails of a spout's stage, or the acks and fails of a bolt's."""

    def __init__(
        self, bootstrap: str, user: Settings, history: History, spout: str, bolt: str, output: TaskOutput
    ) -> None:
        self._place = (bootstrap, history.name, user)
        self._history = history
        self._spout, self._bolt, self._output = spout, bolt, output

    def fail(self, version: int, failed: Mapping[int, RootFailure]) -> None:
        """Fail roots whose init or ack was sent before; ``failed`` is why, by root.

        Raises:
            UnknownVersion: the version is not published. DeliveryFailed: a record was refused.
        """
        acks = self._acks(version)
        for root, failure in failed.items():
            acks.fail(version, root, *failure)
        acks.flush()

    def reset(self, anchors: bytes) -> None:
        """Restart the timeout of the roots of anchors, 18 bytes each, and wait for delivery.

        Raises:
            UnknownVersion: the version is not published. DeliveryFailed: a record was refused.
        """
        rows = np.unique(np.frombuffer(anchors, ANCHOR)[["version", "root"]])
        for version in np.unique(rows["version"]).tolist():
            acks = self._acks(version)
            for root in rows["root"][rows["version"] == version].tolist():
                acks.reset(version, root)
            acks.flush()
        self._output.flush_and_commit()

    def _acks(self, version: int) -> AckPacker:
        if version not in self._history.versions:
            self._history = read_history(*self._place)
        return AckPacker(self._history, f"{self._spout or self._bolt}@spark", self._output.send)

    def send(self, updates: RootUpdates) -> None:
        """Send one init or ack per root, and the fails.

        Raises:
            UnknownVersion: their version is not published. DeliveryFailed: a record was refused.
        """
        # Life of a record, step 8.
        acks = self._acks(updates.version)
        for root, failure in updates.failed.items():
            acks.fail(updates.version, root, *failure)
        entries = self._never_zero_if_failed(updates) if updates.failed else updates.entries
        if self._bolt:
            acks.ack_many(updates.version, entries["root"], entries["value"])
        else:
            self._send_inits(updates.version, entries)
        acks.flush()

    def _never_zero_if_failed(self, updates: RootUpdates) -> EntryArray:
        """Return the entries with a random edge in the init of a root that failed, without its ack."""
        rejected = np.isin(
            updates.entries["root"], np.fromiter(updates.failed, np.uint64, len(updates.failed))
        )
        if self._bolt:
            return updates.entries[~rejected]
        entries = updates.entries.copy()
        entries["value"][rejected] = self._output.edges.many(int(rejected.sum()))
        return entries

    def _send_inits(self, version: int, entries: EntryArray) -> None:
        published = self._history.at(version)
        for at in range(0, len(entries), ROOTS_PER_CHUNK):
            for partition, record in inits_of_tasks(published, entries[at : at + ROOTS_PER_CHUNK]):
                self._output.send(published.ack_init_topic, partition, record)
