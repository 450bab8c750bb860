"""Cuts a failing plan of faults down until every fault left is needed (Zeller's delta debugging)."""

from simulation.faults import Fault
from simulation.one_seed import run_seed


def shrink(seed: int, faults: list[Fault]) -> list[Fault]:
    """Return a shortest plan, by leaving out, with which the seed still breaks a promise."""
    plan, size = list(faults), max(1, len(faults) // 2)
    while plan:
        start, is_shorter = 0, False
        while start < len(plan):
            rest = plan[:start] + plan[start + size :]
            if run_seed(seed, rest).error is not None:
                plan, is_shorter = rest, True
            else:
                start += size
        if size == 1 and not is_shorter:
            break
        size = max(1, size // 2)
    return plan
