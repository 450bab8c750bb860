"""The compiled fold of many entries: one pass over an open-addressing table, where sorting costs most of all.

Needs numba; the GIL is not held.
"""

import numpy as np

from acktree.schemas.batch_codec import compiled
from acktree.schemas.codec import ENTRY, EntryArray
from acktree.schemas.ids import IdArray

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 by the golden ratio: neighbouring roots, and those of one acker, get slots far apart (Knuth 6.4)."""
_ONE = np.uint64(1)


@compiled
def _fold(roots: IdArray, values: IdArray, slots: IdArray, bits: int, sums: IdArray) -> int:
    """Fold into ``sums`` (n, 2); return how many roots there are. ``slots`` (2 ** bits,) are all 0."""
    shift, mask = np.uint64(64 - bits), np.uint64(len(slots) - 1)
    count = 0
    for row in range(len(roots)):
        at = (roots[row] * _SPREAD) >> shift
        while slots[at] != 0 and sums[slots[at] - _ONE, 0] != roots[row]:
            at = (at + _ONE) & mask
        if slots[at] == 0:
            sums[count, 0], sums[count, 1] = roots[row], values[row]
            count += 1
            slots[at] = count
        else:
            sums[slots[at] - _ONE, 1] ^= values[row]
    return count


def fold(roots: IdArray, values: IdArray) -> EntryArray:
    """Return one entry per distinct root, by first appearance; its value is the XOR of that root's values."""
    bits = max(1, (2 * len(roots)).bit_length())
    sums = np.empty((len(roots), 2), np.uint64)
    count = _fold(roots, values, np.zeros(1 << bits, np.uint64), bits, sums)
    return sums[:count].view(ENTRY)[:, 0]
