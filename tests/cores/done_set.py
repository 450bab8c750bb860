"""The metadata of a spout's commits against sets: what was committed stays, what does not fit is left out."""

from random import Random

import numpy as np
from pyroaring import BitMap64

from acktree.spark.ledger.partitions.done_set import (
    EVERYTHING,
    decode_metadata,
    encode_metadata,
    first_absent,
    fits,
    next_done,
    runs,
    set_of,
)
from cores.script import Core, Did, holds, same

TOPIC_ID = "x" * 22


def run_seed(draw: Random, did: Did) -> None:
    """Grow a done set; commit it now and then, into little room, and look it up."""
    frontier = draw.choice((0, 1, 63, 65_530, 2**31 - 9))
    room = draw.choice((69, 69, 75, 120))
    done: set[int] = set()
    committed: set[int] = set()
    for _ in range(draw.randint(1, 8)):
        begin = frontier + draw.choice((1, 2, 9, 60, 80, 120, 200, 500, 70_000)) + draw.randrange(9)
        grown = range(begin, begin + draw.choice((1, 1, 3, 40)), draw.choice((1, 1, 2)))
        did("done", grown)
        done |= {*grown}
        if draw.random() < 0.2:
            done |= {frontier}
            while frontier in done:
                frontier += 1
            done, committed = ({o for o in each if o > frontier} for each in (done, committed))
        look_up(draw, frontier, done)
        did("encode", frontier, room, *sorted(committed))
        committed = encode(frontier, done, committed, room)


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


def encode(frontier: int, done: set[int], committed: set[int], room: int) -> set[int]:
    """Encode a commit, check it, and return what it claims."""
    text, reach, now = encode_metadata(7, TOPIC_ID, frontier, BitMap64(done), BitMap64(committed), room)
    holds("it fits", len(text) <= room and text.isascii())
    back = decode_metadata(text, frontier)
    if back is None:
        raise AssertionError(f"not decoded: {text}")
    same("frame", (back.epoch, back.incarnation), (7, TOPIC_ID))
    claimed = set(back.done)
    same("claimed", claimed, set(now))
    holds("a bit that is not done", claimed <= done)
    holds("taken back", committed <= claimed)
    holds("below the reach", {offset for offset in done if offset < reach} <= claimed)
    same("everything", reach == EVERYTHING, claimed == done and reach > max(done, default=0))
    if fits(frontier, BitMap64(done), room):
        same("all of it", claimed, done)
    return claimed


CORE = Core(run_seed)
