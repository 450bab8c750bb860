"""Decodes batches of AckInit, or of Ack, with compiled code into flat arrays.

Invariant: accepts exactly the bytes that :mod:`acktree.wire.codec` accepts and returns the same values; a
property test compares them. A record it rejects keeps its place in the batch, with a fault and no entries.
Needs numba, so only the acker imports it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from acktree.wire import avro, avro_loops, control_records
from acktree.wire.avro import FRAME_BYTES
from acktree.wire.avro_loops import Bytes as Bytes
from acktree.wire.avro_loops import Integers as Integers
from acktree.wire.avro_loops import (
    copy_array,
    end_of_array,
    read_count,
    read_int,
    read_long,
    read_string,
    signed,
    starts_with,
)
from acktree.wire.codec import ACK_FRAME, ACK_INIT_FRAME, SMALLEST_FAIL
from acktree.wire.compiled_code import Compiler
from acktree.wire.control_records import BACK_OFF, MAX_RETRY_MS, FailedTuple
from acktree.wire.ids import IdArray

WHOLE, MALFORMED, _UNSURE = 0, 1, 255

_INIT_FRAME = np.frombuffer(ACK_INIT_FRAME, np.uint8).copy()
_ACK_FRAME = np.frombuffer(ACK_FRAME, np.uint8).copy()

compiled = Compiler(__file__, control_records.__file__, avro_loops.__file__, avro.__file__)


class InitBatch(NamedTuple):
    """AckInit records: record r owns ``entries[starts[r]:starts[r + 1]]``, rows of (root, value).

    ``faults[r]`` is WHOLE, or why the record must not be folded; the acker adds further reasons.
    """

    faults: Bytes
    tasks: Integers
    versions: Integers
    starts: Integers
    entries: IdArray


class AckBatch(NamedTuple):
    """Ack records: the ``*_starts`` say which rows of acks, fails and resets are a record's.

    ``retries`` has a row per fail: a delay in ms, BACK_OFF or NEVER. So has ``places``: where the topic of
    the failed tuple begins and ends, its partition and offset; (0, -1, 0, 0) if no tuple is named.
    """

    faults: Bytes
    versions: Integers
    ack_starts: Integers
    acks: IdArray
    fail_starts: Integers
    fail_roots: IdArray
    reset_starts: Integers
    resets: IdArray
    task_spans: Integers
    reason_spans: Integers
    retries: Integers
    stack_spans: Integers
    places: Integers
    data: Bytes

    def task(self, fail: int) -> str:
        """Return the task that sent a fail, by the fail's row."""
        return self._text(self.task_spans[self._record_of(fail)])

    def reason(self, fail: int) -> str:
        """Return why a fail was sent, by its row."""
        return self._text(self.reason_spans[fail])

    def failed_tuple(self, fail: int) -> FailedTuple | None:
        """Return the tuple that a fail names, by its row."""
        place = self.places[fail]
        if place[1] < 0:
            return None
        stack = self._text(self.stack_spans[self._record_of(fail)])
        return FailedTuple(self._text(place[:2]), int(place[2]), int(place[3]), stack)

    def is_text(self, record: int) -> bool:
        """Return whether the strings of a record are UTF-8."""
        rows = slice(self.fail_starts[record], self.fail_starts[record + 1])
        topics = [place[:2] for place in self.places[rows] if place[1] >= 0]
        try:
            for span in (
                self.task_spans[record],
                self.stack_spans[record],
                *self.reason_spans[rows],
                *topics,
            ):
                self._text(span)
        except UnicodeDecodeError:
            return False
        return True

    def _record_of(self, fail: int) -> int:
        return int(np.searchsorted(self.fail_starts, fail, "right")) - 1

    def _text(self, span: Integers) -> str:
        return self.data[span[0] : span[1]].tobytes().decode()


def decode_init_batch(values: Sequence[bytes]) -> InitBatch:
    """Return the AckInits in values; any other value has the fault MALFORMED."""
    data, ends = _join(values)
    count = len(values)
    batch = InitBatch(
        faults=np.zeros(count, np.uint8),
        tasks=np.zeros(count, np.int64),
        versions=np.zeros(count, np.int64),
        starts=np.zeros(count + 1, np.int64),
        entries=np.empty((len(data) // 16, 2), np.uint64),
    )
    _decode_inits(data, ends, _INIT_FRAME, batch, _bytes_of(batch.entries))
    return batch


def decode_ack_batch(values: Sequence[bytes]) -> AckBatch:
    """Return the Acks in values; any other value has the fault MALFORMED."""
    data, ends = _join(values)
    count = len(values)
    batch = AckBatch(
        faults=np.zeros(count, np.uint8),
        versions=np.zeros(count, np.int64),
        ack_starts=np.zeros(count + 1, np.int64),
        acks=np.empty((len(data) // 16, 2), np.uint64),
        fail_starts=np.zeros(count + 1, np.int64),
        fail_roots=np.empty(len(data) // SMALLEST_FAIL, np.uint64),
        reset_starts=np.zeros(count + 1, np.int64),
        resets=np.empty(len(data) // 8, np.uint64),
        task_spans=np.zeros((count, 2), np.int64),
        reason_spans=np.empty((len(data) // SMALLEST_FAIL, 2), np.int64),
        retries=np.empty(len(data) // SMALLEST_FAIL, np.int64),
        stack_spans=np.zeros((count, 2), np.int64),
        places=np.empty((len(data) // SMALLEST_FAIL, 4), np.int64),
        data=data,
    )
    columns = (_bytes_of(batch.acks), _bytes_of(batch.fail_roots), _bytes_of(batch.resets))
    _decode_acks(data, ends, _ACK_FRAME, batch, *columns)
    for record in np.flatnonzero(batch.faults == _UNSURE).tolist():
        batch.faults[record] = WHOLE if batch.is_text(record) else MALFORMED
    return batch


def _join(values: Sequence[bytes]) -> tuple[Bytes, Integers]:
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    return np.frombuffer(b"".join((*values, b"\0")), np.uint8), ends


def _bytes_of(array: IdArray) -> Bytes:
    return array.reshape(-1).view(np.uint8)


@compiled
def _decode_inits(data: Bytes, ends: Integers, frame: Bytes, batch: InitBatch, entries: Bytes) -> None:
    row = signed(0)
    for record in range(len(batch.faults)):
        at, end = ends[record], ends[record + 1]
        batch.faults[record] = MALFORMED
        batch.starts[record + 1] = row
        if not starts_with(data, at, end, frame):
            continue
        task, at = read_int(data, at + FRAME_BYTES, end)
        if at < 0:
            continue
        version, at = read_int(data, at, end)
        if at < 0:
            continue
        behind, at = copy_array(data, at, end, 16, entries, row)
        if at != end:
            continue
        batch.faults[record] = WHOLE
        batch.tasks[record], batch.versions[record] = task, version
        batch.starts[record + 1] = row = behind


@compiled
def _decode_acks(
    data: Bytes, ends: Integers, frame: Bytes, batch: AckBatch, acks: Bytes, fails: Bytes, resets: Bytes
) -> None:
    ack_row = fail_row = reset_row = signed(0)
    for record in range(len(batch.faults)):
        at, end = ends[record], ends[record + 1]
        batch.faults[record] = MALFORMED
        batch.ack_starts[record + 1] = ack_row
        batch.fail_starts[record + 1] = fail_row
        batch.reset_starts[record + 1] = reset_row
        if not starts_with(data, at, end, frame):
            continue
        task_start, task_end, task_plain = read_string(data, at + FRAME_BYTES, end)
        if task_end < 0:
            continue
        version, at = read_int(data, task_end, end)
        if at < 0:
            continue
        stack_start, stack_end, stack_plain = read_string(data, at, end)
        if stack_end < 0:
            continue
        fails_behind, at, plain = _fails(data, stack_end, end, fails, batch, fail_row)
        if at < 0:
            continue
        acks_behind, at = copy_array(data, at, end, 16, acks, ack_row)
        if at < 0:
            continue
        resets_behind, at = copy_array(data, at, end, 8, resets, reset_row)
        if at != end:
            continue
        batch.faults[record] = WHOLE if plain and task_plain and stack_plain else _UNSURE
        batch.versions[record] = version
        batch.task_spans[record, 0], batch.task_spans[record, 1] = task_start, task_end
        batch.stack_spans[record, 0], batch.stack_spans[record, 1] = stack_start, stack_end
        batch.ack_starts[record + 1] = ack_row = acks_behind
        batch.fail_starts[record + 1] = fail_row = fails_behind
        batch.reset_starts[record + 1] = reset_row = resets_behind


@compiled
def _fails(data: Bytes, at: int, end: int, roots: Bytes, batch: AckBatch, row: int) -> tuple[int, int, bool]:
    """Copy fails as ``copy_array`` does; return also whether their texts are plain ASCII."""
    count, at = read_count(data, at, end, SMALLEST_FAIL)
    if at < 0 or count == 0:
        return row, at, True
    plain = True
    for _ in range(count):
        if end - at < 8:
            return row, signed(-1), True
        for offset in range(8):
            roots[row * 8 + offset] = data[at + offset]
        retry, at = read_long(data, at + 8, end)
        if at < 0 or retry < BACK_OFF or retry > MAX_RETRY_MS:
            return row, signed(-1), True
        start, at, reason_plain = read_string(data, at, end)
        if at < 0:
            return row, signed(-1), True
        batch.reason_spans[row, 0], batch.reason_spans[row, 1] = start, at
        batch.retries[row] = retry
        at, topic_plain = _place(data, at, end, batch.places, row)
        if at < 0:
            return row, signed(-1), True
        plain &= reason_plain and topic_plain
        row += 1
    return row, end_of_array(data, at, end), plain


@compiled
def _place(data: Bytes, at: int, end: int, places: Integers, row: int) -> tuple[int, bool]:
    """Read the tuple of a fail, if it has one; return where it ends and whether the topic is plain ASCII."""
    places[row, 0], places[row, 1], places[row, 2], places[row, 3] = 0, -1, 0, 0
    branch, at = read_long(data, at, end)
    if at < 0 or branch == 0:
        return at, True
    if branch != 1:
        return signed(-1), True
    start, behind, plain = read_string(data, at, end)
    if behind < 0:
        return signed(-1), True
    partition, at = read_int(data, behind, end)
    if at < 0 or partition < 0:
        return signed(-1), True
    offset, at = read_long(data, at, end)
    if at < 0 or offset < 0:
        return signed(-1), True
    places[row, 0], places[row, 1], places[row, 2], places[row, 3] = start, behind, partition, offset
    return at, plain
