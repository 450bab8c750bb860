"""Offsets done above a frontier, and their form in the metadata of a committed offset.

Invariant: every bit in the text was set, and a bit in an earlier text is in all later ones: the result that
proved it is below the committed result position. Of the new bits those that do not fit are left out, the
highest first. Text that is not ours, or damaged, decodes to None.
"""

import base64
import binascii
from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.wire.avro import read_varint, varint
from acktree.wire.commit_metadata import seal, unseal
from acktree.wire.errors import MalformedRecord
from acktree.wire.state_records import MAX_STATE_BYTES

FORMAT = "1"
MAX_METADATA_CHARS = 4_020
TERM_CHARS, TOPIC_ID_CHARS, FRAME_CHARS = 20, 22, 15
"""Reserved for a term of any length: a longer one must not push out committed bits."""
MAX_SPAN = 1 << 33
"""Nobody commits offsets that far above a frontier; to read them would take gigabytes."""
MAX_DONE_BYTES = MAX_STATE_BYTES // 2
"""With a set larger than that no replay command is applied."""
FEW = 10
"""Offsets that are added one by one in the time of a run of them."""


class CommitMetadata(NamedTuple):
    """What our commit of a source offset says beside the frontier; ``incarnation`` is the topic's id."""

    term: int
    incarnation: str
    done: BitMap64


def set_of(offsets: NDArray[np.int64]) -> BitMap64:
    """Return offsets in any order as a set; those that lie together, as a batch's do, are added together."""
    ordered = np.sort(offsets)
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    if len(breaks) >= len(ordered) // FEW:
        return BitMap64(array("Q", ordered.astype(np.uint64).tobytes()))
    made = BitMap64()
    for first, last in zip(ordered[[0, *(breaks + 1)]], ordered[[*breaks, -1]], strict=True):
        made.add_range(int(first), int(last) + 1)
    return made


def first_absent(done: BitMap64, start: int) -> int:
    """Return the smallest offset >= start that is not in the set, in O(log n) range look-ups."""
    reach = 1
    while _holds(done, start, start + reach):
        reach *= 2
    low, high = reach // 2, reach
    while low < high:
        middle = (low + high) // 2
        if _holds(done, start, start + middle + 1):
            low = middle + 1
        else:
            high = middle
    return start + low


def _holds(done: BitMap64, start: int, end: int) -> bool:
    """Return whether every offset of [start, end) is in the set.

    By counting: ``contains_range`` of 64-bit bitmaps overlooks a block of 65,536 that is not there at all.
    """
    return bool(done.range_cardinality(start, end) == end - start)


def next_done(done: BitMap64, start: int) -> int | None:
    """Return the smallest offset >= start that is in the set, None if there is none."""
    return done.next_set_bit(start) if done and done.max() >= start else None


def runs(done: BitMap64, start: int, limit: int) -> list[tuple[int, int]]:
    """Return the first ``limit`` runs [begin, end) of the set at or above start."""
    found: list[tuple[int, int]] = []
    while len(found) < limit and (begin := next_done(done, start)) is not None:
        start = first_absent(done, begin)
        found.append((begin, start))
    return found


class EncodedMetadata(NamedTuple):
    """A metadata text; it holds everything below ``reach`` and all of ``committed``."""

    text: str
    reach: int
    committed: BitMap64


def encode_metadata(
    term: int,
    incarnation: str,
    frontier: int,
    done: BitMap64,
    committed: BitMap64 | None = None,
    max_chars: int = MAX_METADATA_CHARS,
) -> EncodedMetadata:
    """Return the metadata of a commit of what is done, part of which earlier commits hold (``committed``).

    Two forms of the bits are tried, run lengths and a plain bitmap, and the one that reaches further is taken
    (after Confluent's Parallel Consumer). ASCII only: zero bytes have come back as garbage elsewhere.
    """
    room = (max_chars - TERM_CHARS - TOPIC_ID_CHARS - FRAME_CHARS) // 4 * 3
    if room < 8 or len(incarnation) > TOPIC_ID_CHARS:
        raise ValueError(f"{max_chars} characters hold no metadata of {incarnation!r}")
    committed = committed if committed is not None else BitMap64()
    if (by_runs := _encode_runs(frontier, done, committed, room)) is None:  # of a larger limit
        committed = BitMap64()
        by_runs = _encode_runs(frontier, done, committed, room)
    assert by_runs is not None, "without bits there is room"
    (raw, reach), form = by_runs, "R"
    if not committed or committed.max() < frontier + room * 8:
        by_bits, reach_bits = _encode_bits(frontier, done, room)
        if reach_bits > reach:
            raw, reach, form = by_bits, reach_bits, "B"
    text = seal(FORMAT, term, incarnation, form + base64.b64encode(raw).decode())
    below = done.copy()
    below.remove_range(reach, EVERYTHING)
    return EncodedMetadata(text, reach, below | committed)


def serialized(done: BitMap64) -> bytes:
    """Return the set in the portable Roaring format, which ``BitMap64.deserialize`` reads."""
    compact = done.copy()
    compact.run_optimize()
    return bytes(compact.serialize())


def fits(done: BitMap64, max_bytes: int = MAX_DONE_BYTES) -> bool:
    """Return whether a record of the state topic has room for everything done, and for more of it."""
    return len(serialized(done)) <= max_bytes


def decode_metadata(text: str | None, frontier: int) -> CommitMetadata | None:
    """Return what a commit of ours says, None for anybody else's metadata or a damaged one."""
    parts = unseal(text or "", (FORMAT,), 4)
    if parts is None:
        return None
    decode = {"R": _decode_runs, "B": _decode_bits}.get(parts[3][:1])
    if decode is None:
        return None
    try:
        raw = base64.b64decode(parts[3][1:], validate=True)
        return CommitMetadata(int(parts[1]), parts[2], decode(frontier, raw))
    except (binascii.Error, ValueError, MalformedRecord):
        return None


EVERYTHING = 1 << 62


def _encode_runs(frontier: int, done: BitMap64, committed: BitMap64, room: int) -> tuple[bytes, int] | None:
    """Return the first runs done, as many as fit beside the committed ones behind them, and their reach.

    None if not even the committed ones fit.
    """
    ends, encoded, lengths = [frontier], bytearray(), [0]
    for begin, end in runs(done, frontier, room // 2 + 1):
        encoded += _run(begin, end, ends[-1])
        ends.append(end)
        lengths.append(len(encoded))
    if len(encoded) <= room:
        return bytes(encoded), EVERYTHING
    behind = runs(committed, frontier, room // 2 + 1)
    befores = [frontier, *(end for _, end in behind)]
    sizes = [len(_run(*run, before)) for run, before in zip(behind, befores, strict=False)]
    rest, passed, fitting = sum(sizes), 0, None
    for length, reach in zip(lengths, ends, strict=True):
        while passed < len(behind) and behind[passed][1] <= reach:
            rest -= sizes[passed]
            passed += 1
        gap = len(_run(*behind[passed], reach)) - sizes[passed] if passed < len(behind) else 0
        if length + rest + gap <= room:
            fitting = (length, reach, passed)
    if fitting is None:
        return None
    length, reach, passed = fitting
    befores = [reach, *(end for _, end in behind[passed:])]
    committed_behind = (_run(*run, before) for run, before in zip(behind[passed:], befores, strict=False))
    return bytes(encoded[:length]) + b"".join(committed_behind), reach


def _run(begin: int, end: int, before: int) -> bytes:
    """Return a run of done offsets behind one that ends at ``before``."""
    return varint(begin - before) + varint(end - begin)


def _decode_runs(frontier: int, raw: bytes) -> BitMap64:
    done, position, at, lengths = BitMap64(), frontier, 0, []
    while at < len(raw):
        length, at = read_varint(raw, at)
        lengths.append(length)
    for gap, length in zip(lengths[::2], lengths[1::2], strict=False):
        if position + gap + length > frontier + MAX_SPAN:
            raise MalformedRecord(f"offsets done up to {gap + length} above {position}")
        done.add_range(position + gap, position + gap + length)
        position += gap + length
    return done


def _encode_bits(frontier: int, done: BitMap64, room: int) -> tuple[bytes, int]:
    reach = frontier + room * 8
    window = BitMap64()
    window.add_range(frontier, reach)
    offsets = np.asarray((done & window).to_array(), np.int64) - frontier
    flags = np.zeros(room * 8, np.uint8)
    flags[offsets] = 1
    raw = np.packbits(flags, bitorder="little").tobytes().rstrip(b"\0")
    return raw, EVERYTHING if not done or int(done.max()) < reach else reach


def _decode_bits(frontier: int, raw: bytes) -> BitMap64:
    flags = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
    return set_of(np.flatnonzero(flags) + frontier)
