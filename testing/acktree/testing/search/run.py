"""One seed: a system, its faults, its healing, and the judge's word."""

import random
from collections import Counter
from dataclasses import dataclass

from acktree.schemas.world import use_world
from acktree.testing.idle import fewer_idle_turns
from acktree.testing.search.faults import FAULTY_S, Fault, draw_faults, schedule
from acktree.testing.search.system import System

HEALED_S = 300.0
"""Within what everything must be done after that."""


@dataclass
class Outcome:
    """What came of a seed."""

    seed: int
    faults: list[Fault]
    error: BaseException | None
    counters: Counter[str]
    events: list[str]
    virtual_s: float
    tasks_left: int = 0


def run_seed(seed: int, faults: list[Fault] | None = None) -> Outcome:
    """Run a seed, with its own faults or with others."""
    system = System(seed)
    if faults is None:
        faults = draw_faults(random.Random(f"faults {seed}"))
    kernel = system.kernel
    error: BaseException | None = None
    with use_world(system.world), fewer_idle_turns():
        try:
            run_system(system, faults)
        except Exception as found:
            error = found
        finally:
            system.kernel.close()
    left = sum(len(process.tasks) for process in kernel.processes)
    judge = system.judge
    return Outcome(seed, faults, error, judge.counters, judge.events, kernel.now_s, left)


def run_system(system: System, faults: list[Fault]) -> None:
    """Run through both phases. Raises BrokenPromise, TookTooLong, and what ended a process."""
    kernel, judge = system.kernel, system.judge
    system.set_up()
    schedule(system, faults)

    def is_over(end_s: float) -> bool:
        if judge.cluster.appended:
            judge.look()
        if system.is_spark:
            judge.check_commits(system.spout_group)
        if kernel.ended:
            system.watch()
        return kernel.now_s >= end_s

    start_s = kernel.now_s
    kernel.call_after(FAULTY_S, lambda: None)
    kernel.run(lambda: is_over(start_s + FAULTY_S) or system.is_done, FAULTY_S * 2)
    system.heal()
    kernel.run(lambda: is_over(float("inf")) or system.is_done, HEALED_S)
    end_s = kernel.now_s + 1.0
    kernel.call_after(1.0, lambda: None)
    kernel.run(lambda: is_over(end_s), HEALED_S)
    judge.check_exactly_once()
