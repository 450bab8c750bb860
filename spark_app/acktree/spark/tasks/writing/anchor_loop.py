"""Compiled loops over anchors: headers of tuples with one root each, the fold of a task's roots in order.

Invariant: they say what the array code of ``anchoring.py`` says, in one pass over the rows. Needs numba; the
GIL is not held.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.schemas import header, ids
from acktree.schemas.compiled_code import Compiler
from acktree.schemas.control_records import ENTRY, EntryArray
from acktree.schemas.header import ANCHOR, FORMAT, SINGLE
from acktree.schemas.ids import M1, M1_INVERSE, M2, M2_INVERSE, IdArray

compiled = Compiler(__file__, header.__file__, ids.__file__)

Records = NDArray[np.void]
_M1, _M2, _M1_INVERSE, _M2_INVERSE = (np.uint64(factor) for factor in (M1, M2, M1_INVERSE, M2_INVERSE))
_27, _30, _31, _54, _60, _62 = (np.uint64(bits) for bits in (27, 30, 31, 54, 60, 62))


@compiled
def _mix(number: Any) -> Any:
    number = (number ^ (number >> _30)) * _M1
    number = (number ^ (number >> _27)) * _M2
    return number ^ (number >> _31)


@compiled
def _unmix(number: Any) -> Any:
    number = (number ^ (number >> _31) ^ (number >> _62)) * _M2_INVERSE
    number = (number ^ (number >> _27) ^ (number >> _54)) * _M1_INVERSE
    return number ^ (number >> _30) ^ (number >> _60)


@compiled
def _anchor(
    rows: Records, emission: int, edges: IdArray, hashes: IdArray, headers: Records, folded: Records
) -> int:
    """Fill headers; fold neighbours of one root into entries and return how many, -1 for several versions."""
    count = 0
    for row in range(len(rows)):
        if rows[row].version != rows[0].version:
            return -1
        root, edge = rows[row].root, edges[row]
        header = headers[row]
        header.format, header.emission, header.version = FORMAT, emission, rows[row].version
        header.root, header.edge = root, edge
        value = np.uint64(0)
        for reader in hashes:
            value ^= _mix(edge ^ reader)
        if count and folded[count - 1].root == root:
            folded[count - 1].value ^= value
        else:
            folded[count].root, folded[count].value = root, value
            count += 1
    return count


@compiled
def _fold_in_order(rows: Records, updates: Records, folded: Records) -> int:
    """Fold updates into one entry per root of ``rows`` and return how many, -1: not in order."""
    count, at, last = 0, 0, np.uint64(0)
    for row in range(len(rows)):
        if rows[row].version != rows[0].version:
            return -1
        root = rows[row].root
        if count and folded[count - 1].root == root:
            continue  # of one block
        origin = _unmix(root)
        if count and origin <= last:
            return -1
        last, value = origin, np.uint64(0)
        while at < len(updates) and updates[at].root == root:
            value ^= updates[at].value
            at += 1
        folded[count].root, folded[count].value = root, value
        count += 1
    return count if at == len(updates) else -1


def anchor(
    rows: Records, emission: int, edges: IdArray, reader_hashes: tuple[int, ...]
) -> tuple[Records, EntryArray] | None:
    """Return a header for each of ``rows``, and an entry for each run of one root: its emitted value.

    rows: (n,) of ANCHOR, n >= 1; None unless all are of one version. edges: (n,).
    """
    headers, folded = np.empty(len(rows), SINGLE), np.empty(len(rows), ENTRY)
    count = _anchor(rows, emission, edges, np.array(reader_hashes, np.uint64), headers, folded)
    return None if count < 0 else (headers, folded[:count])


def fold_in_order(rows: Records, updates: EntryArray) -> EntryArray | None:
    """Return one entry for each root of ``rows``, (n,) of ANCHOR: the XOR of its ``updates``.

    None unless ``rows`` are of one version and in the order of their origins, and the updates in the same
    order: then it is one pass with no table of roots. Rows of a root may repeat as neighbours.
    """
    folded = np.empty(len(rows), ENTRY)
    count = _fold_in_order(rows, updates, folded)
    return None if count < 0 else folded[:count]


def warm_up() -> None:
    """Compile or load the loops."""
    rows = np.frombuffer(bytes(ANCHOR.itemsize), ANCHOR)  # not to be written to, as those of Arrow
    made = anchor(rows, 1, np.ones(1, np.uint64), ())
    assert made is not None
    fold_in_order(np.zeros(1, ANCHOR), made[1])
