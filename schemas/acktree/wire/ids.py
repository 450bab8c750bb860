"""Root ids, edge ids and the arithmetic on them (docs/wire.md).

Invariant: every function is pure and works on unsigned 64-bit values; the numpy variants agree with the
scalar ones on every input. Random edges come from ``acktree.core.edges``.
"""

from typing import NamedTuple, NewType, overload

import numpy as np
from numpy.typing import NDArray

from acktree.wire.errors import AcktreeError

RootId = NewType("RootId", int)
EdgeId = NewType("EdgeId", int)
IdArray = NDArray[np.uint64]

MASK = (1 << 64) - 1
MAX_SLOTS = 1 << 12
MAX_RUN = (1 << 8) - 1
MAX_OFFSET = (1 << 40) - 1
ATTEMPT_MASK = 0xF

M1, M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
M1_INVERSE, M2_INVERSE = pow(M1, -1, 1 << 64), pow(M2, -1, 1 << 64)


class OffsetTooLarge(AcktreeError):
    """An offset does not fit into the 40 bits that a root id has for it."""

    @classmethod
    def of(cls, slot: int, offset: int) -> "OffsetTooLarge":
        """Return the error that names an offset of a slot."""
        return cls(
            f"offset {offset} of slot {slot} does not fit into a root id, which holds 0 to {MAX_OFFSET} (40 "
            "bits): let the producers write to a new topic; a Python spout starts again at 0 when "
            "it is restarted"
        )


class Origin(NamedTuple):
    """The content of a root id: slot and offset of the source record, and the generation of this emission."""

    slot: int
    generation: int
    offset: int

    @property
    def run(self) -> int:
        return self.generation >> 4

    @property
    def attempt(self) -> int:
        """Attempt modulo 16; 0 is the first emission."""
        return self.generation & ATTEMPT_MASK


def mix(x: int) -> int:
    """Return the splitmix64 finalizer of x, a bijection on 64 bits (Steele, Lea, Flood 2014).

    >>> hex(mix(1)), unmix(mix(2**64 - 1)) == 2**64 - 1
    ('0x5692161d100b05e5', True)
    """
    x ^= x >> 30
    x = x * M1 & MASK
    x ^= x >> 27
    x = x * M2 & MASK
    return x ^ x >> 31


def unmix(x: int) -> int:
    """Return the only y with ``mix(y) == x``."""
    x ^= x >> 31 ^ x >> 62
    x = x * M2_INVERSE & MASK
    x ^= x >> 27 ^ x >> 54
    x = x * M1_INVERSE & MASK
    return x ^ x >> 30 ^ x >> 60


def mix_array(x: IdArray) -> IdArray:
    """Return ``mix`` of every element."""
    x = x ^ x >> np.uint64(30)
    x *= np.uint64(M1)
    x ^= x >> np.uint64(27)
    x *= np.uint64(M2)
    x ^= x >> np.uint64(31)
    return x


def unmix_array(x: IdArray) -> IdArray:
    """Return ``unmix`` of every element."""
    x = x ^ (x >> np.uint64(31)) ^ (x >> np.uint64(62))
    x *= np.uint64(M2_INVERSE)
    x ^= (x >> np.uint64(27)) ^ (x >> np.uint64(54))
    x *= np.uint64(M1_INVERSE)
    x ^= (x >> np.uint64(30)) ^ (x >> np.uint64(60))
    return x


def generation_of(run: int, attempt: int) -> int:
    """Return the generation of the given attempt (0 = first emission) in a run (1 to 255)."""
    assert 1 <= run <= MAX_RUN, run
    return run << 4 | attempt & ATTEMPT_MASK


def next_run(run: int) -> int:
    """Return the run after this one; 0 is not a run, so 255 is followed by 1."""
    return run % MAX_RUN + 1


@overload
def run_at_least(run: int, floor: int) -> bool: ...
@overload
def run_at_least(run: NDArray[np.int64], floor: int) -> NDArray[np.bool_]: ...
def run_at_least(run: int | NDArray[np.int64], floor: int) -> bool | NDArray[np.bool_]:
    """Return whether run, or each of an array, is not below floor, modulo 255.

    It is serial-number arithmetic (after RFC 1982) on 1 to 255.
    """
    return (run - floor) % MAX_RUN <= MAX_RUN // 2


@overload
def is_run_between(run: int, floor: int, newest: int) -> bool: ...
@overload
def is_run_between(run: NDArray[np.int64], floor: int, newest: int) -> NDArray[np.bool_]: ...
def is_run_between(run: int | NDArray[np.int64], floor: int, newest: int) -> bool | NDArray[np.bool_]:
    """Return whether run, or each of an array, is one of those from floor to newest, modulo 255.

    ``run_at_least`` takes a run that is 128 older for a newer one; this does not: none is newer than newest.

    >>> is_run_between(255, 250, 3), is_run_between(3, 250, 3), is_run_between(4, 250, 3)
    (True, True, False)
    """
    return (run - floor) % MAX_RUN <= (newest - floor) % MAX_RUN


def root_id(slot: int, generation: int, offset: int) -> RootId:
    """Return the root id of one emission of a source record; raise OffsetTooLarge beyond MAX_OFFSET.

    >>> origin_of(root_id(3, generation_of(run=1, attempt=2), 77))
    Origin(slot=3, generation=18, offset=77)
    """
    assert 0 <= slot < MAX_SLOTS, slot
    assert 16 <= generation < 1 << 12, generation
    if not 0 <= offset <= MAX_OFFSET:
        raise OffsetTooLarge.of(slot, offset)
    return RootId(mix(slot << 52 | generation << 40 | offset))


def root_ids(slot: int, generation: int, offsets: NDArray[np.int64]) -> IdArray:
    """Return the root ids of one generation of many offsets of a slot.

    Raises OffsetTooLarge where one is beyond MAX_OFFSET.
    """
    assert 0 <= slot < MAX_SLOTS, slot
    assert 16 <= generation < 1 << 12, generation
    packed = offsets.astype(np.uint64)
    if len(packed) and (largest := int(packed.max())) > MAX_OFFSET:
        raise OffsetTooLarge.of(slot, largest)
    return mix_array(packed | np.uint64(slot << 52 | generation << 40))


def origin_of(root: int) -> Origin:
    """Return what a root id was made of."""
    x = unmix(root)
    return Origin(x >> 52, x >> 40 & 0xFFF, x & MAX_OFFSET)


def origins_of(roots: IdArray) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return slots, generations and offsets of many roots, each of the roots' shape."""
    x = unmix_array(roots)
    return (
        (x >> np.uint64(52)).astype(np.int64),
        (x >> np.uint64(40) & np.uint64(0xFFF)).astype(np.int64),
        (x & np.uint64(MAX_OFFSET)).astype(np.int64),
    )


def acker_partition(root: int, ackers: int) -> int:
    """Return the control partition of a root, the unsigned remainder.

    >>> acker_partition(2**63, 3), acker_partition(2**64 - 1, 10)
    (2, 5)
    """
    return (root & MASK) % ackers


def fnv1a64(text: str) -> int:
    """Return the FNV-1a hash of the text's UTF-8 bytes.

    >>> hex(fnv1a64("a"))
    '0xaf63dc4c8601ec8c'
    """
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def consumer_edge(edge: int, bolt_hash: int) -> int:
    """Return the edge that one bolt owns of a record; bolt_hash is ``fnv1a64`` of the bolt's name."""
    return mix(edge ^ bolt_hash)


def emitted_value(edge: int, reader_hashes: tuple[int, ...]) -> int:
    """Return the value that a record's emitter contributes: the XOR of all its readers' consumer edges."""
    value = 0
    for bolt_hash in reader_hashes:
        value ^= mix(edge ^ bolt_hash)
    return value


def emitted_values(edges: IdArray, reader_hashes: tuple[int, ...]) -> IdArray:
    """Return ``emitted_value`` of every edge."""
    values = np.zeros_like(edges)
    for bolt_hash in reader_hashes:
        values ^= mix_array(edges ^ np.uint64(bolt_hash))
    return values
