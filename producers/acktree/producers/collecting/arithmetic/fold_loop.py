"""The compiled fold of many entries: one pass over an open-addressing table instead of a sort.

Needs numba; the GIL is not held.
"""

import numpy as np

from acktree.wire.compiled_code import Compiler
from acktree.wire.control_records import ENTRY, EntryArray
from acktree.wire.ids import IdArray

compiled = Compiler(__file__)

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 by the golden ratio: neighbouring roots, and those of one acker, get distant slots (Knuth 6.4)."""
_ONE = np.uint64(1)


@compiled
def _fold(roots: IdArray, values: IdArray, slots: IdArray, bits: int, sums: IdArray) -> int:
    """Fold into ``sums`` (n, 2); return the number of distinct roots. ``slots`` (2 ** bits,) are all 0."""
    shift, mask = np.uint64(64 - bits), np.uint64(len(slots) - 1)
    count = 0
    for row in range(len(roots)):
        slot = (roots[row] * _SPREAD) >> shift
        while slots[slot] != 0 and sums[slots[slot] - _ONE, 0] != roots[row]:
            slot = (slot + _ONE) & mask
        if slots[slot] == 0:
            sums[count, 0], sums[count, 1] = roots[row], values[row]
            count += 1
            slots[slot] = count
        else:
            sums[slots[slot] - _ONE, 1] ^= values[row]
    return count


def fold(roots: IdArray, values: IdArray) -> EntryArray:
    """Return one entry per distinct root, in order of first appearance, its value the XOR of that root's."""
    bits = max(1, (2 * len(roots)).bit_length())
    sums = np.empty((len(roots), 2), np.uint64)
    count = _fold(roots, values, np.zeros(1 << bits, np.uint64), bits, sums)
    return sums[:count].view(ENTRY)[:, 0]
