"""Searches whole systems under random faults, in virtual time.

    python tests/simulation/run.py --seeds 1500

Prints the seeds that broke a promise, each with a plan of faults that is cut down, and the counters of rare
things. Ends with status 1 if a promise was broken, or if a set of 400 seeds or more is void: something rare
never happened in it.
"""

import argparse
import gc
import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa

from acktree.acker.warm_up import warm_up

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import time_left
from simulation import source_logs
from simulation.faults import OPT_IN, Fault
from simulation.one_seed import SeedRun, run_seed
from simulation.rare_events import SET_SEEDS, missing
from simulation.shrink import shrink

CHUNK = 10
LOGS = "source logs: "
"""Begins the text of what the search of source logs has found: another system, with faults of its own."""
LOGS_EVERY = 4
"""One seed of so many is followed by one of source logs, which takes twice as long."""
NOT_RUN = "not run, because the time was over"
TWICE = 100
"""Of so many seeds one is run twice, and must give the same event log."""


def _prepare() -> None:
    """Be quiet, and collect garbage seldom: that takes a sixth of the time."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    warm_up()
    pa.array([b""])  # imports pandas where that is installed
    gc.set_threshold(100_000)
    gc.freeze()  # what is imported is no garbage


def _run(seeds: list[int], also: Sequence[str] = ()) -> tuple[list[tuple[int, str]], Counter[str]]:
    _prepare()
    broken: list[tuple[int, str]] = []
    counters: Counter[str] = Counter()
    for seed in seeds:
        if time_left.is_over():
            counters[NOT_RUN] += 1
            continue
        outcome = run_seed(seed, also=also)
        counters += outcome.counters
        if outcome.error is not None:
            broken.append((seed, describe(outcome)))
        if seed % LOGS_EVERY == 0:
            logs = source_logs.run_seed(seed // LOGS_EVERY)
            counters += Counter({LOGS + name: count for name, count in logs.counters.items()})
            if logs.error is not None:
                broken.append((logs.seed, LOGS + describe(logs)))
        if seed % TWICE == 0:
            if run_seed(seed, also=also).events != outcome.events:
                broken.append((seed, "two runs of the seed differ"))
            counters["run twice"] += 1
    return broken, counters


def describe(outcome: SeedRun | source_logs.SourceLogsRun) -> str:
    """Return what broke, in one line."""
    return f"{type(outcome.error).__name__}: {str(outcome.error).partition(chr(10))[0]}"


def _chunks(seeds: Iterable[int], size: int) -> Iterator[list[int]]:
    rest = iter(seeds)
    while chunk := list(islice(rest, size)):
        yield chunk


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1500, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise")
    parser.add_argument("--replay", type=int, help="run one seed and print its event log")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        choices=OPT_IN,
        help="add a fault of this kind to each seed",
    )
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings are iterated in the order of their hashes
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if arguments.replay is not None:
        return _replay(arguments.replay, arguments.fault)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return search(seeds, arguments.jobs, arguments.stop, arguments.fault)


def _replay(seed: int, also: Sequence[str]) -> int:
    _prepare()
    outcome = run_seed(seed, also=also)
    print(*outcome.events, sep="\n")
    if outcome.error is None:
        return 0
    print(describe(outcome))
    _print_plan(shrink(seed, outcome.faults))
    return 1


def _print_plan(plan: list[Fault]) -> None:
    print("cut down to these faults:" if plan else "it needs no fault")
    for fault in plan:
        print("   ", fault)


def search(seeds: range, jobs: int, stop: bool, also: Sequence[str] = ()) -> int:
    """Run seeds in so many processes, print what came of them, and return the status."""
    began_s, counters, broken = time.monotonic(), Counter[str](), list[tuple[int, str]]()
    done, size = 0, 1 if stop else CHUNK
    with ProcessPoolExecutor(jobs) as pool:
        for found, counted in pool.map(partial(_run, also=also), _chunks(seeds, size)):
            counters += counted
            broken += found
            done += size
            for seed, text in found:
                print(f"seed {seed}: {text}", flush=True)
            if broken and stop:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    seconds = time.monotonic() - began_s
    for name, count in sorted(counters.items()):
        print(f"{count:8} {name}")
    left = counters[NOT_RUN]
    print(f"{min(done, len(seeds)) - left} seeds in {seconds:.1f} s, {len(broken)} broken promises")
    if left:
        print(
            f"NOT RUN, because the time was over: {left} seeds; `make simulate SEEDS={len(seeds)}` runs them"
        )
    never = missing(counters) if len(seeds) >= SET_SEEDS and not stop and not left else []
    if never:
        print(f"the set is void, because it never had: {', '.join(never)}")
    of_systems = [seed for seed, text in broken if not text.startswith(LOGS)]
    for seed, text in broken:
        if text.startswith(LOGS):
            print(f"seed {seed}, again: python tests/simulation/source_logs.py {seed}")
    if of_systems and not stop:
        _prepare()
        seed = of_systems[0]
        outcome = run_seed(seed, also=also)
        asked = "".join(f" --fault {name}" for name in also)
        print(f"seed {seed}, again: python tests/simulation/run.py --replay {seed}{asked}")
        _print_plan(shrink(seed, outcome.faults))
    return 1 if broken or never else 0


if __name__ == "__main__":
    sys.exit(main())
