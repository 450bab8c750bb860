"""Runs the pure cores against their models, one short random script per seed.

    python tests/cores/run.py --seeds 1000000

Prints per core how many seeds have run and how fast. A seed that fails is printed with its script; status 1.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import patch

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the models of other tests; and no core hides a module

from cores import (
    blocks,
    done_above,
    done_set,
    fold,
    ledger,
    packing,
    partition,
    retries,
    slot_states,
    spout,
    task_ledger,
)
from cores.script import Core

CORES: dict[str, Core] = {
    "fold": fold.CORE,
    "partition": partition.CORE,
    "ledger": ledger.CORE,
    "task-ledger": task_ledger.CORE,
    "spout": spout.CORE,
    "blocks": blocks.CORE,
    "retries": retries.CORE,
    "slot-states": slot_states.CORE,
    "done-above": done_above.CORE,
    "done-set": done_set.CORE,
    "packing": packing.CORE,
}
CHUNK = 2_000


class Failed(NamedTuple):
    """A seed whose script fails, with the operations up to there and the error."""

    core: str
    seed: int
    script: list[str]
    error: str

    def __str__(self) -> str:
        return "\n".join([f"{self.core}, seed {self.seed}:", *self.script, self.error])


@contextmanager
def small(core: Core) -> Iterator[None]:
    """Apply the patches of a core."""
    with ExitStack() as stack:
        for name, value in core.patches.items():
            stack.enter_context(patch(name, value))
        yield


def replay(name: str, seed: int) -> tuple[list[str], str]:
    """Run one seed; return its operations, and the error or an empty text."""
    script: list[str] = []
    with small(CORES[name]):
        try:
            CORES[name].run_seed(Random(seed), lambda *did: script.append("    " + " ".join(map(str, did))))
        except Exception as error:
            return script, f"{type(error).__name__}: {error}"
    return script, ""


def run(name: str, seeds: range) -> tuple[int, float, Failed | None]:
    """Run seeds of a core up to the first that fails; return how many were run, in what CPU time."""
    core, began_s, count = CORES[name], time.process_time(), 0
    with small(core):
        for seed in seeds:
            if seed % core.every:
                continue
            count += 1
            try:
                core.run_seed(Random(seed), _ignore)
            except Exception:
                return count, time.process_time() - began_s, Failed(name, seed, *replay(name, seed))
    return count, time.process_time() - began_s, None


def _ignore(*_did: object) -> None:
    pass


def run_all(names: list[str], seeds: range, jobs: int) -> bool:
    """Run seeds of each core and print the figures; return whether none failed."""
    chunks = [range(start, min(start + CHUNK, seeds.stop)) for start in range(seeds.start, seeds.stop, CHUNK)]
    is_good, began_s = True, time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        for name in names:
            total, cpu_s, failed = 0, 0.0, None
            for count, seconds, failed in pool.map(run, [name] * len(chunks), chunks):
                total, cpu_s = total + count, cpu_s + seconds
                if failed is not None:
                    print(failed, flush=True)
                    is_good = False
                    break
            print(f"{name:12} {total:9} seeds, {cpu_s:7.1f} s, {total / cpu_s:7.0f} a second", flush=True)
    print(f"{len(seeds)} seeds in {time.monotonic() - began_s:.0f} s: {'all' if is_good else 'not all'} good")
    return is_good


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100_000, help="how many seeds of each core")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    parser.add_argument("--core", choices=list(CORES), action="append", help="this core alone")
    parser.add_argument("--replay", type=int, help="run one seed and print its script")
    arguments = parser.parse_args()
    names = arguments.core or list(CORES)
    if arguments.replay is None:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
        return 0 if run_all(names, seeds, arguments.jobs) else 1
    errors = []
    for name in names:
        script, error = replay(name, arguments.replay)
        print(Failed(name, arguments.replay, script, error or "good"))
        errors.append(error)
    return 1 if any(errors) else 0


if __name__ == "__main__":
    sys.exit(main())
