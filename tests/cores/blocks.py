"""First emissions against a dict that has, for each offset, the block it was first emitted in."""

from random import Random

import numpy as np

from acktree.producers.ledger.partitions.blocks import Blocks, block_firsts
from acktree.wire.ids import generation_of
from cores.script import Core, Did, holds, same

SIZES = (1, 2, 3, 5, 8)
MAX_RUN = 255


class BlocksModel:
    """By offset: where its block begins and ends, and in which run it was emitted."""

    def __init__(self):
        self.of = {}
        self.alone = (0, 0)

    def emit(self, start, end, size, run):
        """Emit [start, end); what lies between it and records alone of the same run, before it, is done."""
        if start == end:
            return
        if (size, run) == (1, self.alone[1]):
            start = self.alone[0]
        self.alone = (end, run if size == 1 else 0)
        blocks = []
        for offset in range(start, end):
            if offset == start or offset % size == 0:
                blocks.append([])
            blocks[-1].append(offset)
        for block in blocks:
            self.of.update(dict.fromkeys(block, (block[0], block[-1] + 1, run)))

    def first(self, offset):
        return self.of[offset][0]

    def find(self, generation, offset):
        """Return the block whose first emission had this root, None for any other root."""
        first, end, run = self.of.get(offset, (None, None, None))
        return range(first, end) if first == offset and generation == run * 16 else None

    def cover(self, generation, offset):
        """Return the offsets that an ack of a root may finish."""
        return {*(self.find(generation, offset) or [offset])}


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
        if (block := model.of.get(offset))
    }
    blocks.discard(lambda _start, end: end <= gone)
    holds("kept above", {o for o in model.of if o >= gone} <= set(held))
    model.of = held
    compare(draw, did, blocks, model, range(begin, at + 2), run)


def compare(draw: Random, did: Did, blocks: Blocks, model: BlocksModel, offsets: range, newest: int) -> None:
    """Compare every answer about some roots."""
    asked = sorted(draw.sample(offsets, min(len(offsets), 5)))
    runs = [(newest - draw.choice((0, 1, 2)) - 1) % MAX_RUN + 1 for _ in asked]
    roots = [
        (generation_of(run, draw.choice((0, 0, 0, 1))), offset)
        for run, offset in zip(runs, asked, strict=True)
    ]
    did("ask", roots)
    same("found", [blocks.find(*root) for root in roots], [model.find(*root) for root in roots])
    covered = set().union(*(model.cover(*root) for root in roots))
    columns = np.array(roots, np.int64).reshape(-1, 2).T
    same("cover", set(blocks.cover(*columns)), covered)


CORE = Core(run_seed)
