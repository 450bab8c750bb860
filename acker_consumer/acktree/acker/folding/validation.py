"""Decides which records may be folded: whole ones, of roots and spout tasks that exist, on their partition.

Invariant: a record passes whole or not at all; any other is invalid, with its coordinates. An
unknown version is looked up in the registry before it is invalid, so a new version's first records pass.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np

from acktree.acker.folding.invalid import InvalidRecord, InvalidRecords
from acktree.core.topology.registry import History
from acktree.wire import batch_codec
from acktree.wire.batch_codec import AckBatch, Bytes, InitBatch, Integers
from acktree.wire.codec import decode_ack, decode_ack_init
from acktree.wire.compiled_code import Compiler
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import MAX_VERSION
from acktree.wire.ids import IdArray

Values = Sequence[bytes]
compiled = Compiler(__file__, batch_codec.__file__)


class Fault(IntEnum):
    """The reason why a record of a batch is not folded."""

    WHOLE = batch_codec.WHOLE
    MALFORMED = batch_codec.MALFORMED
    UNKNOWN_VERSION = 2
    UNKNOWN_TASK = 3
    ROOT_ZERO = 4
    WRONG_PARTITION = 5


_UNKNOWN_VERSION, _UNKNOWN_TASK = int(Fault.UNKNOWN_VERSION), int(Fault.UNKNOWN_TASK)
_ROOT_ZERO, _WRONG_PARTITION = int(Fault.ROOT_ZERO), int(Fault.WRONG_PARTITION)


@compiled
def _check_roots(faults: Bytes, ackers: Integers, partition: int, starts: Integers, roots: IdArray) -> None:
    """Set the fault of records that name root 0 or a root of another partition."""
    for record in range(len(faults)):
        if faults[record] != 0:
            continue
        divisor, here = np.uint64(ackers[record]), np.uint64(partition)
        for row in range(starts[record], starts[record + 1]):
            root = roots[row]
            if root == np.uint64(0):
                faults[record] = _ROOT_ZERO
                break
            if root % divisor != here:
                faults[record] = _WRONG_PARTITION
                break


class RecordValidator:
    """Decodes and checks the records of one topology; ``look_up`` brings its history up to date."""

    def __init__(self, history: History, look_up: Callable[[], None], invalid: InvalidRecords) -> None:
        self._history, self._look_up, self._invalid = history, look_up, invalid

    def inits(
        self, topic: str, partition: int, values: Values, offsets: Sequence[int], wall_ms: int
    ) -> InitBatch:
        """Return the AckInits in values; the others have a fault, and are invalid."""
        batch = batch_codec.decode_init_batch(values)
        ackers = self._ackers(batch)
        known = np.fromiter(self._spout_tasks(), np.int64)
        batch.faults[(batch.faults == 0) & ~np.isin(batch.tasks, known)] = _UNKNOWN_TASK
        _check_roots(batch.faults, ackers, partition, batch.starts, batch.entries[:, 0])
        self._reject(topic, partition, batch, values, offsets, wall_ms)
        return batch

    def acks(
        self, topic: str, partition: int, values: Values, offsets: Sequence[int], wall_ms: int
    ) -> AckBatch:
        """Return the Acks in values; the others have a fault, and are invalid."""
        # Life of an ack, step 8.
        batch = batch_codec.decode_ack_batch(values)
        ackers = self._ackers(batch)
        _check_roots(batch.faults, ackers, partition, batch.ack_starts, batch.acks[:, 0])
        _check_roots(batch.faults, ackers, partition, batch.fail_starts, batch.fail_roots)
        _check_roots(batch.faults, ackers, partition, batch.reset_starts, batch.resets)
        self._reject(topic, partition, batch, values, offsets, wall_ms)
        return batch

    def _ackers(self, batch: InitBatch | AckBatch) -> Integers:
        """Return the acker count of each record's version; set the fault of those whose version has none."""
        ackers = np.zeros(len(batch.faults), np.int64)
        versions = np.unique(batch.versions[batch.faults == 0]).tolist()
        possible = [version for version in versions if 1 <= version <= MAX_VERSION]
        if any(version not in self._history.versions for version in possible):
            self._look_up()
        for version in possible:
            if version in self._history.versions:
                ackers[batch.versions == version] = self._history.ackers(version)
        batch.faults[(batch.faults == 0) & (ackers == 0)] = _UNKNOWN_VERSION
        return ackers

    def _spout_tasks(self) -> set[int]:
        """Return the number of every spout task of any version."""
        tasks = (version.spout_tasks.values() for version in self._history.versions.values())
        return {task for spouts in tasks for numbers in spouts for task in numbers}

    def _reject(
        self,
        topic: str,
        partition: int,
        batch: InitBatch | AckBatch,
        values: Values,
        offsets: Sequence[int],
        wall_ms: int,
    ) -> None:
        for record in np.flatnonzero(batch.faults).tolist():
            reason = _reason(batch, record, values[record], partition)
            self._invalid.add(InvalidRecord(topic, partition, offsets[record], reason), wall_ms)


def _reason(batch: InitBatch | AckBatch, record: int, value: bytes, partition: int) -> str:
    match Fault(batch.faults[record]):
        case Fault.UNKNOWN_VERSION:
            return f"topology version {batch.versions[record]} is unknown or has no ackers"
        case Fault.UNKNOWN_TASK:
            task = batch.tasks[record] if isinstance(batch, InitBatch) else ""
            return f"spout task {task} does not exist"
        case Fault.ROOT_ZERO:
            return "a root id is 0"
        case Fault.WRONG_PARTITION:
            return f"a root does not belong to partition {partition} in version {batch.versions[record]}"
    return _malformed(decode_ack_init if isinstance(batch, InitBatch) else decode_ack, value)


def _malformed(decode: Callable[[bytes], object], value: bytes) -> str:
    try:
        decode(value)
    except MalformedRecord as error:
        return str(error)
    raise AssertionError("the compiled decoder refused what the reference accepts")
