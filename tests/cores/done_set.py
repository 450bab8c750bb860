"""Sets of offsets that are done against plain sets: searches, and their form in the state of a spout."""

from random import Random

import numpy as np
from pyroaring import BitMap64

from acktree.producers.ledger.partitions.done_set import first_absent, next_done, runs, serialized, set_of
from cores.script import Core, Did, same


def run_seed(draw: Random, did: Did) -> None:
    """Grow a set of what is done above a frontier, look it up, and store it."""
    frontier, done = draw.choice((0, 1, 63, 65_530, 2**31 - 9, 2**40)), set[int]()
    for _ in range(draw.randint(1, 8)):
        begin = frontier + draw.choice((1, 2, 9, 60, 200, 500, 70_000)) + draw.randrange(9)
        grown = range(begin, begin + draw.choice((1, 1, 3, 40)), draw.choice((1, 1, 2)))
        did("done", grown)
        done |= {*grown}
        look_up(draw, frontier, done)
        stored = serialized(BitMap64(done))
        same("stored", set(BitMap64.deserialize(stored)), done)
        same("the same bytes again", serialized(BitMap64.deserialize(stored)), stored)


def look_up(draw: Random, frontier: int, done: set[int]) -> None:
    """Compare the searches in the set."""
    product = set_of(np.array([*done], np.int64))
    same("set", set(product), done)
    start = draw.choice((frontier, *done)) + draw.choice((0, 1))
    absent = start
    while absent in done:
        absent += 1
    same("first absent", first_absent(product, start), absent)
    same("next done", next_done(product, start), min((o for o in done if o >= start), default=None))
    spans: list[tuple[int, int]] = []
    for offset in sorted(o for o in done if o >= start):
        if spans and spans[-1][1] == offset:
            spans[-1] = (spans[-1][0], offset + 1)
        else:
            spans.append((offset, offset + 1))
    limit = draw.randint(0, 4)
    same("runs", runs(product, start, limit), spans[:limit])


CORE = Core(run_seed)
