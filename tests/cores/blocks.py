"""Ranges of blocks against a dict that has, for each offset, the block it was emitted in."""

from random import Random

import numpy as np
from pyroaring import BitMap64

from acktree.spark.ledger.blocks import Blocks, block_firsts
from cores.script import Core, Did, same

SIZES = (1, 2, 3, 5, 8)
MAX_RUN = 255


def is_older(run: int, than: int) -> bool:
    """Return whether a run is one of the 127 before another, on a ring of 255."""
    return run != than and (than - run) % MAX_RUN < 128


class BlocksModel:
    """By offset: where its block begins and ends, and in which run it was emitted."""

    def __init__(self):
        self.of = {}

    def emit(self, start, end, size, run):
        if size == 1:
            return
        blocks = []
        for offset in range(start, end):
            if offset == start or offset % size == 0:
                blocks.append([])
            blocks[-1].append(offset)
        for block in blocks:
            self.of.update(dict.fromkeys(block, (block[0], block[-1] + 1, run)))

    def first(self, offset):
        return self.of[offset][0] if offset in self.of else offset

    def end(self, offset):
        return self.of[offset][1] if offset in self.of else offset + 1

    def is_older(self, offset, run):
        return offset in self.of and is_older(run, self.of[offset][2])

    def cover(self, first, run):
        """Return the offsets that an ack of a block's root in a run may finish."""
        return {first} if self.is_older(first, run) else {*range(first, self.end(first))}


def run_seed(draw: Random, did: Did) -> None:
    """Emit some ranges, then ask for blocks; discard some and ask again."""
    blocks, model = Blocks(), BlocksModel()
    at, run = draw.choice((0, 7, 2**31 - 3)), draw.choice((1, 100, 254))
    begin = at
    for _ in range(draw.randint(1, 5)):
        at += draw.choice((0, 0, 0, 1, 3))
        end, size = at + draw.choice((0, 1, 2, 5, 10)), draw.choice(SIZES)
        did("emit", at, end, size, run)
        blocks.emit(at, end, size, run)
        model.emit(at, end, size, run)
        if size > 1:
            offsets = np.arange(at, end)
            same("firsts", block_firsts(offsets, at, size).tolist(), [*map(model.first, offsets.tolist())])
        at, run = end, draw.choice((run, run, run % MAX_RUN + 1))
    compare(draw, did, blocks, model, range(begin, at + 2), run)
    gone = draw.randint(begin, at)
    did("discard", gone)
    held = {
        offset: block
        for r in blocks.ranges
        if r.end > gone
        for offset in range(r.start, r.end)
        if (block := model.of[offset])
    }
    blocks.discard(lambda _start, end: end <= gone)
    same("kept above", {o for o in model.of if o >= gone} <= set(held), True)
    model.of = held
    compare(draw, did, blocks, model, range(begin, at + 2), run)


def compare(draw: Random, did: Did, blocks: Blocks, model: BlocksModel, offsets: range, newest: int) -> None:
    """Compare every answer about some offsets."""
    run = (newest - draw.choice((0, 1, 2)) - 1) % MAX_RUN + 1
    asked = sorted(draw.sample(offsets, min(len(offsets), 5)))
    did("ask", asked, "in run", run)
    same("first", [*map(blocks.first_of, asked)], [*map(model.first, asked)])
    same("end", [*map(blocks.end_of, asked)], [*map(model.end, asked)])
    same(
        "older", [blocks.is_older(each, run) for each in asked], [model.is_older(each, run) for each in asked]
    )
    firsts = sorted({*map(model.first, asked)})
    covered = set().union(*(model.cover(first, run) for first in firsts))
    same("cover", set(blocks.cover(np.array(firsts, np.int64), run)), covered)
    ranges = sorted({(model.first(each), model.end(each)) for each in asked})
    same("split", [*blocks.split(BitMap64(asked))], ranges)
    low, high = asked[0], asked[-1] + draw.randint(0, 2)
    same("overlap", blocks.overlap(low, high), any(offset in model.of for offset in range(low, high)))
    lengths = [last - first for first, last, _ in model.of.values()]
    same("largest", blocks.largest >= max(lengths, default=1), True)


CORE = Core(run_seed)
