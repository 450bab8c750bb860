"""Holds failures that would become dead letters until a spout's breaker has had a window to open. Pure.

Invariant: a held emission is the newest of its record and not in flight: it is given up, or emitted again if
the breaker opens, and nothing else happens to it meanwhile. A record that was done or rewound meanwhile is
dropped.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acktree.core.reports.breaker import Breaker, Held
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.wire.control_records import Failure


class Emission(NamedTuple):
    """One emission of a record."""

    slot: int
    generation: int
    offset: int


class HeldFailure(NamedTuple):
    """The last failure of an emission whose attempts are used up, or that was rejected."""

    emission: Emission
    failure: Failure


def release(ledger: PartitionLedger, held: HeldFailure, now_s: float) -> None:
    """Make a held record due, now or after its delay, with one attempt left."""
    _, generation, offset = held.emission
    ledger.retries.put_back(generation, offset, now_s, ledger.policy)


def is_probe_acked(
    breaker: Breaker, slot: int, generations: NDArray[np.int64], offsets: NDArray[np.int64]
) -> bool:
    """Return whether a probe is among the acked emissions of a slot."""
    return any(
        bool(((generations == probe.generation) & (offsets == probe.offset)).any())
        for probe in breaker.probes
        if isinstance(probe, Emission) and probe.slot == slot
    )


def take_over(held: Held[HeldFailure], breaker: Breaker, now_s: float) -> tuple[list[HeldFailure], bool]:
    """Return what to do with held failures, and whether that is to emit them again or to give them up."""
    if not held:
        return [], False
    if breaker.is_open or breaker.check(now_s):
        return held.pop_all(), True
    return held.pop_over(breaker, now_s), False
