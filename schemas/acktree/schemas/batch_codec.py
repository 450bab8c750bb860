"""Decodes batches of AckInit, or of Ack and FailWithRetry, with compiled code into flat arrays.

Invariant: accepts exactly the bytes that :mod:`acktree.schemas.codec` accepts and returns the same values; a
property test compares them. A record it rejects keeps its place in the batch, with a fault and no entries.
Needs numba, so only the acker imports it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acktree.schemas import control_records
from acktree.schemas.avro import FRAME_BYTES
from acktree.schemas.codec import ACK_FRAME, ACK_INIT_FRAME, FAIL_WITH_RETRY_FRAME
from acktree.schemas.compiled_code import Compiler
from acktree.schemas.control_records import BACK_OFF, MAX_RETRY_MS, NEVER
from acktree.schemas.ids import IdArray

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

WHOLE, MALFORMED, _UNSURE = 0, 1, 255
SMALLEST_FAIL = 9
_SMALLEST_RETRY_FAIL = 10

_INIT_FRAME = np.frombuffer(ACK_INIT_FRAME, np.uint8).copy()
_ACK_FRAMES = np.frombuffer(ACK_FRAME + FAIL_WITH_RETRY_FRAME, np.uint8).reshape(2, -1).copy()
_LEAST, _MOST = -(2**31), 2**31


compiled = Compiler(__file__, control_records.__file__)


class InitBatch(NamedTuple):
    """AckInit records: record r owns ``entries[starts[r]:starts[r + 1]]``, rows of (root, value).

    ``faults[r]`` is WHOLE, or why the record must not be folded; the acker adds reasons of its own.
    """

    faults: Bytes
    tasks: Integers
    versions: Integers
    starts: Integers
    entries: IdArray


class AckBatch(NamedTuple):
    """Ack records: the ``*_starts`` say which rows of acks, fails and resets are a record's.

    ``retries`` has a row per fail: a delay in ms, BACK_OFF or NEVER.
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
    data: Bytes

    def task(self, fail: int) -> str:
        """Return the task that sent a fail, by the fail's row."""
        record = int(np.searchsorted(self.fail_starts, fail, "right")) - 1
        return self._text(self.task_spans[record])

    def reason(self, fail: int) -> str:
        """Return why a fail was sent, by its row."""
        return self._text(self.reason_spans[fail])

    def is_text(self, record: int) -> bool:
        """Return whether the strings of a record are UTF-8."""
        reasons = self.reason_spans[self.fail_starts[record] : self.fail_starts[record + 1]]
        try:
            for span in (self.task_spans[record], *reasons):
                self._text(span)
        except UnicodeDecodeError:
            return False
        return True

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
    """Return the Acks and FailWithRetrys in values; any other value has the fault MALFORMED."""
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
        data=data,
    )
    columns = (_bytes_of(batch.acks), _bytes_of(batch.fail_roots), _bytes_of(batch.resets))
    _decode_acks(data, ends, _ACK_FRAMES, batch, *columns)
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
def _signed(number: Any) -> Any:
    return np.int64(number)


@compiled
def _long(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return an Avro long and where it ends, or (0, -1)."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(64):
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and (byte & np.uint64(0x7F)) > np.uint64(1):
            break
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return _signed(value >> np.uint64(1)) ^ -_signed(value & np.uint64(1)), at
        shift += np.uint64(7)
    return _signed(0), _signed(-1)


@compiled
def _int(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return an Avro int and where it ends, or (0, -1)."""
    value, at = _long(data, at, end)
    if value < _LEAST or value >= _MOST:
        return _signed(0), _signed(-1)
    return value, at


@compiled
def _count(data: Bytes, at: int, end: int, smallest: int) -> tuple[int, int]:
    """Return an array's count and where its items start, or (0, -1) if the bytes left cannot hold them."""
    count, at = _long(data, at, end)
    if at < 0:
        return _signed(0), _signed(-1)
    left = end - at
    if count < 0:
        count = -count
        size, at = _long(data, at, end)
        if at < 0 or size > left or count < 0:
            return _signed(0), _signed(-1)
    if count > left // smallest:
        return _signed(0), _signed(-1)
    return count, at


@compiled
def _copy_array(data: Bytes, at: int, end: int, size: int, out: Bytes, row: int) -> tuple[int, int]:
    """Copy an array to row ``row`` of out; return the row behind it and where it ends (-1: malformed)."""
    count, at = _count(data, at, end, size)
    if at < 0 or count > (end - at) // size:
        return row, _signed(-1)
    target = row * size
    for offset in range(count * size):
        out[target + offset] = data[at + offset]
    at += count * size
    if count > 0:
        at = _end_of_array(data, at, end)
    return row + count, at


@compiled
def _end_of_array(data: Bytes, at: int, end: int) -> int:
    """Return the position after the zero that ends an array, -1 if there is none here."""
    value, at = _long(data, at, end)
    return at if at >= 0 and value == 0 else _signed(-1)


@compiled
def _string(data: Bytes, at: int, end: int) -> tuple[int, int, bool]:
    """Return where a string starts and ends (-1: malformed) and whether it is plain ASCII."""
    size, at = _long(data, at, end)
    if at < 0 or size < 0 or size > end - at:
        return _signed(0), _signed(-1), True
    plain = True
    for offset in range(size):
        plain &= data[at + offset] < 0x80
    return at, at + size, plain


@compiled
def _starts_with(data: Bytes, at: int, end: int, frame: Bytes) -> bool:
    if end - at < FRAME_BYTES:
        return False
    same = True
    for offset in range(FRAME_BYTES):
        same &= data[at + offset] == frame[offset]
    return same


@compiled
def _decode_inits(data: Bytes, ends: Integers, frame: Bytes, batch: InitBatch, entries: Bytes) -> None:
    row = _signed(0)
    for record in range(len(batch.faults)):
        at, end = ends[record], ends[record + 1]
        batch.faults[record] = MALFORMED
        batch.starts[record + 1] = row
        if not _starts_with(data, at, end, frame):
            continue
        task, at = _int(data, at + FRAME_BYTES, end)
        if at < 0:
            continue
        version, at = _int(data, at, end)
        if at < 0:
            continue
        behind, at = _copy_array(data, at, end, 16, entries, row)
        if at != end:
            continue
        batch.faults[record] = WHOLE
        batch.tasks[record], batch.versions[record] = task, version
        batch.starts[record + 1] = row = behind


@compiled
def _decode_acks(
    data: Bytes, ends: Integers, frames: Bytes, batch: AckBatch, acks: Bytes, fails: Bytes, resets: Bytes
) -> None:
    ack_row = fail_row = reset_row = _signed(0)
    for record in range(len(batch.faults)):
        at, end = ends[record], ends[record + 1]
        batch.faults[record] = MALFORMED
        batch.ack_starts[record + 1] = ack_row
        batch.fail_starts[record + 1] = fail_row
        batch.reset_starts[record + 1] = reset_row
        has_retries = _starts_with(data, at, end, frames[1])
        if not has_retries and not _starts_with(data, at, end, frames[0]):
            continue
        task_start, task_end, task_plain = _string(data, at + FRAME_BYTES, end)
        if task_end < 0:
            continue
        version, at = _int(data, task_end, end)
        if at < 0:
            continue
        acks_behind, resets_behind = ack_row, reset_row
        if not has_retries:
            acks_behind, at = _copy_array(data, at, end, 16, acks, ack_row)
            if at < 0:
                continue
        fails_behind, at, plain = _fails(data, at, end, fails, batch, fail_row, has_retries)
        if at < 0:
            continue
        if not has_retries:
            resets_behind, at = _copy_array(data, at, end, 8, resets, reset_row)
        if at != end:
            continue
        batch.faults[record] = WHOLE if plain and task_plain else _UNSURE
        batch.versions[record] = version
        batch.task_spans[record, 0], batch.task_spans[record, 1] = task_start, task_end
        batch.ack_starts[record + 1] = ack_row = acks_behind
        batch.fail_starts[record + 1] = fail_row = fails_behind
        batch.reset_starts[record + 1] = reset_row = resets_behind


@compiled
def _fails(
    data: Bytes, at: int, end: int, roots: Bytes, batch: AckBatch, row: int, has_retries: bool
) -> tuple[int, int, bool]:
    """Copy fails as ``_copy_array`` does; return also whether their reasons are plain ASCII."""
    count, at = _count(data, at, end, _SMALLEST_RETRY_FAIL if has_retries else SMALLEST_FAIL)
    if at < 0 or count == 0:
        return row, at, True
    plain = True
    for _ in range(count):
        if end - at < 8:
            return row, _signed(-1), True
        for offset in range(8):
            roots[row * 8 + offset] = data[at + offset]
        at += 8
        retry = _signed(BACK_OFF)
        if has_retries:
            retry, at = _long(data, at, end)
            if at < 0 or retry < NEVER or retry > MAX_RETRY_MS:
                return row, _signed(-1), True
        start, at, reason_plain = _string(data, at, end)
        if at < 0:
            return row, _signed(-1), True
        batch.reason_spans[row, 0], batch.reason_spans[row, 1] = start, at
        batch.retries[row] = retry
        plain &= reason_plain
        row += 1
    return row, _end_of_array(data, at, end), plain
