"""What a bolt commits beside a frontier: which offsets above it are done, so that nobody executes them again.

Invariant: what is claimed is done; what lies WINDOW_OFFSETS or more above the frontier is not claimed, so the
text always fits into a broker's metadata. Foreign, damaged or misplaced text claims nothing. Pure.
"""

import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

WINDOW_OFFSETS = 24_000
"""Bits of these in base64 stay below 4,096 characters, a broker's default limit, however they lie."""
_FORMAT = "acktree-bolt-1"


@dataclass(frozen=True, slots=True)
class DoneAbove:
    """All offsets from ``frontier`` to ``end`` (exclusive) are done but those in ``open``."""

    frontier: int
    end: int
    open: frozenset[int]

    def holds(self, offset: int) -> bool:
        """Tell whether an offset is known to be done.

        >>> [offset for offset in range(3, 9) if DoneAbove(4, 8, frozenset((4, 6))).holds(offset)]
        [5, 7]
        """
        return self.frontier <= offset < self.end and offset not in self.open


def encode_done(frontier: int, end: int, open_offsets: Sequence[int]) -> str:
    """Return the metadata of a commit at ``frontier``: what is done below ``end``, as far as it fits.

    ``open_offsets`` are those not done, from the frontier on, in rising order.

    >>> decode_done(encode_done(4, 8, [4, 6]), 4)
    DoneAbove(frontier=4, end=8, open=frozenset({4, 6}))
    """
    end = min(end, frontier + WINDOW_OFFSETS)
    lies = np.zeros(max(0, end - frontier), bool)
    lies[[offset - frontier for offset in takewhile(lambda offset: offset < end, open_offsets)]] = True
    if lies.all():
        return ""
    packed = binascii.b2a_base64(zlib.compress(np.packbits(lies).tobytes()), newline=False).decode()
    body = f"{_FORMAT}|{end - frontier}|{packed}"
    return f"{body}|{_check_of(body, frontier)}"


def decode_done(text: str, frontier: int) -> DoneAbove | None:
    """Return what was committed beside ``frontier``; None for any text that is not ours or not of there."""
    body, _, check = text.rpartition("|")
    parts = body.split("|")
    if len(parts) != 3 or parts[0] != _FORMAT or check != _check_of(body, frontier):
        return None
    span = int(parts[1])
    packed = np.frombuffer(zlib.decompress(binascii.a2b_base64(parts[2])), np.uint8)
    lies = np.flatnonzero(np.unpackbits(packed, count=span))
    return DoneAbove(frontier, frontier + span, frozenset((lies + frontier).tolist()))


def _check_of(body: str, frontier: int) -> str:
    return f"{zlib.crc32(f'{frontier}|{body}'.encode()):08x}"
