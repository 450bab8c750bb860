"""What a bolt commits beside a frontier: which offsets above it are done, so that nobody executes them again.

With ``exactly_once`` also who owns the partition: the 16 bytes that its transactional id is made of.

Invariant: what is claimed is done; what lies WINDOW_OFFSETS or more above the frontier is not claimed, so the
text always fits into a broker's metadata. Foreign, damaged or misplaced text claims nothing and names nobody.
Releases that know no owner read the same text: they pass over what follows the end of a zlib stream. Pure.
"""

import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

WINDOW_OFFSETS = 24_000
"""Bits of these in base64 stay below 4,096 characters, a broker's default limit, however they lie."""
OWNER_BYTES = 16
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


def encode_done(frontier: int, end: int, open_offsets: Sequence[int], owner: bytes = b"") -> str:
    """Return the metadata of a commit at ``frontier``: what is done below ``end``, as far as it fits.

    ``open_offsets`` are those not done, from the frontier on, in rising order; ``owner`` is empty or has
    OWNER_BYTES.

    >>> decode_done(encode_done(4, 8, [4, 6]), 4)
    DoneAbove(frontier=4, end=8, open=frozenset({4, 6}))
    """
    end = min(end, frontier + WINDOW_OFFSETS)
    lies = np.zeros(max(0, end - frontier), bool)
    lies[[offset - frontier for offset in takewhile(lambda offset: offset < end, open_offsets)]] = True
    if lies.all():
        if not owner:
            return ""
        lies = lies[:0]
    said = zlib.compress(np.packbits(lies).tobytes()) + owner
    body = f"{_FORMAT}|{len(lies)}|{binascii.b2a_base64(said, newline=False).decode()}"
    return f"{body}|{_check_of(body, frontier)}"


def decode_done(text: str, frontier: int) -> DoneAbove | None:
    """Return what is done above ``frontier``; None for nothing, and for text that is not ours or of there."""
    span, packed, _ = _unpack(text, frontier)
    if not span:
        return None
    lies = np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8), count=span))
    return DoneAbove(frontier, frontier + span, frozenset((lies + frontier).tolist()))


def decode_owner(text: str, frontier: int) -> bytes:
    """Return who owned the partition and has not left it, b"" for nobody that is known.

    >>> decode_owner(encode_done(4, 4, [], b"sixteen bytes, 1"), 4)
    b'sixteen bytes, 1'
    """
    _, _, owner = _unpack(text, frontier)
    return owner if len(owner) == OWNER_BYTES else b""


def _unpack(text: str, frontier: int) -> tuple[int, bytes, bytes]:
    """Return the number of bits, the bits and what follows them; nothing of text that is not ours."""
    body, _, check = text.rpartition("|")
    parts = body.split("|")
    if len(parts) != 3 or parts[0] != _FORMAT or check != _check_of(body, frontier):
        return 0, b"", b""
    stream = zlib.decompressobj()
    packed = stream.decompress(binascii.a2b_base64(parts[2]))
    return int(parts[1]), packed, stream.unused_data


def _check_of(body: str, frontier: int) -> str:
    return f"{zlib.crc32(f'{frontier}|{body}'.encode()):08x}"
