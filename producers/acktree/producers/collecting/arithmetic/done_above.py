"""The metadata of a bolt's committed offset: which offsets above it are done, so that nobody repeats them.

With ``exactly_once`` it also names the partition's owner: the 16 bytes that its transactional id is made of.

Invariant: it lists only offsets that are done, and none WINDOW_OFFSETS or more above the frontier, so it fits
a broker's metadata limit. Foreign, damaged or misplaced text lists nothing and names no owner. Pure.
"""

import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

import numpy as np

from acktree.wire.commit_metadata import seal, unseal

WINDOW_OFFSETS = 24_000
"""Any bitmap of this many offsets has fewer than 4,096 characters, a broker's default limit, in base64."""
OWNER_BYTES = 16
_FORMAT = "acktree-bolt-1"


@dataclass(frozen=True, slots=True)
class DoneAbove:
    """All offsets from ``frontier`` to ``end`` (exclusive) are done, except those in ``open``."""

    frontier: int
    end: int
    open: frozenset[int]

    def holds(self, offset: int) -> bool:
        """Return whether an offset is known to be done.

        >>> [offset for offset in range(3, 9) if DoneAbove(4, 8, frozenset((4, 6))).holds(offset)]
        [5, 7]
        """
        return self.frontier <= offset < self.end and offset not in self.open


def encode_done(frontier: int, end: int, open_offsets: Sequence[int], owner: bytes = b"") -> str:
    """Return the metadata of a commit at ``frontier``: what is done below ``end``, within the window.

    ``open_offsets`` are those not done, from the frontier on, in ascending order; ``owner`` is empty or
    OWNER_BYTES long.

    >>> decode_done(encode_done(4, 8, [4, 6]), 4)
    DoneAbove(frontier=4, end=8, open=frozenset({4, 6}))
    """
    end = min(end, frontier + WINDOW_OFFSETS)
    bits = np.zeros(max(0, end - frontier), bool)
    bits[[offset - frontier for offset in takewhile(lambda offset: offset < end, open_offsets)]] = True
    if bits.all():
        if not owner:
            return ""
        bits = bits[:0]
    packed = zlib.compress(np.packbits(bits).tobytes())
    text = binascii.b2a_base64(packed, newline=False).decode()
    return seal(_FORMAT, len(bits), text, owner.hex(), about=f"{frontier}|")


@lru_cache(1024)
def encode_all_done(frontier: int, owner: bytes) -> str:
    """Return the metadata of a commit above whose frontier nothing is done; idle partitions ask again."""
    return encode_done(frontier, frontier, (), owner)


def decode_done(text: str, frontier: int) -> DoneAbove | None:
    """Return what is done above ``frontier``; None if nothing is, or if the text is foreign or misplaced."""
    span, packed, _ = _unpack(text, frontier)
    if not span:
        return None
    gaps = np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8), count=span))
    return DoneAbove(frontier, frontier + span, frozenset((gaps + frontier).tolist()))


def decode_owner(text: str, frontier: int) -> bytes:
    """Return the owner that has not left the partition, b"" if there is none.

    >>> decode_owner(encode_done(4, 4, [], b"sixteen bytes, 1"), 4)
    b'sixteen bytes, 1'
    """
    _, _, owner = _unpack(text, frontier)
    return owner if len(owner) == OWNER_BYTES else b""


def _unpack(text: str, frontier: int) -> tuple[int, bytes, bytes]:
    """Return the number of bits, the bits and the owner; (0, b"", b"") for foreign text."""
    parts = unseal(text, (_FORMAT,), 4, about=f"{frontier}|")
    if parts is None:
        return 0, b"", b""
    try:
        span, packed = int(parts[1]), zlib.decompress(binascii.a2b_base64(parts[2]))
        owner = bytes.fromhex(parts[3])
    except (ValueError, zlib.error):
        return 0, b"", b""
    if not 0 <= span <= WINDOW_OFFSETS or len(packed) != (span + 7) // 8:  # malformed claim
        return 0, b"", b""
    return span, packed, owner
