"""One seed: a system, its faults, its healing, and what the checker found."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from acktree.core.world import use_world
from acktree.testing.idle import fewer_idle_turns
from simulation.checker import BrokenPromise
from simulation.faults import (
    FAULTY_S,
    SECOND_BOLT_DRIVER,
    Fault,
    draw_faults,
    draw_opt_in,
    schedule,
)
from simulation.settled import AT_REST_S, unfinished
from simulation.system import SPARK_BOLT, System
from simulation.timeouts import SETTLE_S

CALM = 8
"""Of so many seeds one has no fault that keeps ackers from their work."""
MINUTE_S = 60.0
"""Within what something is finished, once everything is healed and has caught up."""
HEALED_S = 300.0
"""Within what everything must be done after that."""


@dataclass
class SeedRun:
    """What came of a seed."""

    seed: int
    faults: list[Fault]
    error: BaseException | None
    counters: Counter[str]
    events: list[str]
    virtual_s: float
    tasks_left: int = 0


def run_seed(seed: int, faults: list[Fault] | None = None, also: Sequence[str] = ()) -> SeedRun:
    """Run a seed, with its own faults and one of each kind in ``also``, or with other faults."""
    if faults is None:
        faults = draw_faults(random.Random(f"faults {seed}"), is_calm=seed % CALM == 0)
        faults += draw_opt_in(random.Random(f"opt-in {seed}"), also)
    is_asked = any(fault.kind == SECOND_BOLT_DRIVER for fault in faults)
    system = System(seed, 1.0 if is_asked else SPARK_BOLT)
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
    checker = system.checker
    return SeedRun(seed, faults, error, checker.counters, checker.events, kernel.now_s, left)


def run_system(system: System, faults: list[Fault]) -> None:
    """Run through all phases. Raises BrokenPromise, TookTooLong, and what ended a process."""
    kernel, checker = system.kernel, system.checker
    system.set_up()
    schedule(system, faults)

    cluster, seen = checker.cluster, (-1, -1)
    is_known = False

    def look() -> None:
        """Read what is new; most events change nothing that anybody asks for."""
        nonlocal seen, is_known
        if cluster.appended:
            checker.look()
            system.look_at_breakers()
            is_known = False
        if (changes := (cluster.offset_changes, len(checker.acked))) != seen:
            seen, is_known = changes, False
            checker.see_commits()
            if system.is_spark:
                checker.check_commits(system.spout_group)
        if kernel.ended:
            system.watch()
        parts = checker.repeats, checker.retries, checker.timeouts, checker.root_ids
        for found in chain.from_iterable(part.found for part in parts):
            raise BrokenPromise(found)

    def run_for(seconds: float, is_enough: Callable[[], bool]) -> None:
        end_s = kernel.now_s + seconds
        kernel.call_after(seconds, lambda: None)  # time passes to the end, though nothing else happens
        kernel.run(lambda: after_a_look(is_enough) or kernel.now_s >= end_s, seconds + 1.0)

    def after_a_look(is_enough: Callable[[], bool]) -> bool:
        nonlocal is_known
        look()
        if is_known:
            return False  # it did not hold, and nothing has changed since
        is_known = not is_enough()
        return not is_known

    def check_threads() -> None:
        if found := system.lost_thread():
            raise BrokenPromise(found)

    run_for(FAULTY_S, lambda: system.is_done)
    check_threads()
    system.heal()
    is_known = False
    healed_s = kernel.now_s

    def is_done_or_moves() -> bool:
        """Whether all is done. Raises BrokenPromise if nothing was finished for a minute."""
        idle_s = kernel.now_s - max(checker.finished_s, healed_s + SETTLE_S)
        if idle_s > MINUTE_S and not system.is_done:
            check_threads()
            raise BrokenPromise(f"nothing was finished for {idle_s:.0f} s")
        return after_a_look(lambda: system.is_done)

    kernel.run(is_done_or_moves, HEALED_S)
    run_for(1.0, lambda: False)
    checker.check_exactly_once()
    limit_s = system.topology.orphan_timeout_s + AT_REST_S
    is_known = False
    run_for(limit_s, lambda: not unfinished(system))
    if reason := unfinished(system):
        raise BrokenPromise(f"not at rest after {limit_s:g} s: {reason}")
    checker.check_exactly_once()
    checker.check_every_record()
    check_threads()
