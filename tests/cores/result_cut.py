"""The cut of a result topic against the plain rule: behind it is only what a commit or a batch has.

The model goes through all results, the first to the last, every time.
"""

from random import Random

from acktree.spark.ledger.result_cut import Emission, ResultCut

from cores.script import Core, Did, holds, same

SLOTS = (0, 1)


class CutScript:
    """Reaches and what is open only ever move one way, as in a driver."""

    def __init__(self, draw: Random, did: Did) -> None:
        self.draw, self.did = draw, did
        self.next_offset = self.last = draw.choice((0, 100))
        self.cut = ResultCut(self.next_offset)
        self.results: list[tuple[int, dict[int, int], list[Emission]]] = []
        self.failed: list[Emission] = []
        self.written: set[Emission] = set()
        self.closed: set[Emission] = set()
        self.reach = dict.fromkeys(SLOTS, 0)
        self.held: set[int] = set()

    def step(self) -> None:
        kind, draw = self.draw.random(), self.draw
        if kind < 0.4:
            self.record()
        elif kind < 0.5 and self.failed:
            emission = draw.choice(self.failed)
            self.did("written", emission)
            self.cut.written([emission])
            self.written.add(emission)
        elif kind < 0.6 and self.failed:
            self.closed.add(draw.choice(self.failed))
            self.did("closed", *self.closed)
        elif kind < 0.75 and self.reach:
            slot = draw.choice([*self.reach])
            self.reach[slot] += draw.randint(1, 4)
        elif kind < 0.8:
            self.reach.pop(draw.choice(SLOTS), None)
        elif kind < 0.9:
            self.hold_or_release()
        self.compare()

    def record(self) -> None:
        draw, offset = self.draw, self.next_offset + self.draw.choice((0, 0, 0, 1, 5))
        highest = {slot: draw.randrange(9) for slot in SLOTS if draw.random() < 0.4}
        opened = []
        if draw.random() < 0.4:
            place, count = (draw.choice(SLOTS), 16 + len(self.failed)), draw.choice((1, 1, 3))
            opened = [Emission(*place, draw.randrange(8) + row) for row in range(count)]
        self.did("record", offset, highest, opened)
        self.cut.record(offset, highest, iter(opened))
        self.results.append((offset, highest, opened))
        self.failed += opened
        self.next_offset = offset + 1

    def hold_or_release(self) -> None:
        if self.held:
            offset = self.held.pop()
            self.did("release", offset)
            self.cut.release(offset)
        else:
            offset = self.draw.randint(self.last, self.next_offset)
            self.did("hold", offset)
            self.cut.hold(offset)
            self.held.add(offset)

    def is_durable(self, highest: dict[int, int], opened: list[Emission]) -> bool:
        for slot, offset in highest.items():
            if slot in self.reach and offset >= self.reach[slot]:
                return False
        for emission in opened:
            is_committed = emission.slot not in self.reach or emission.offset < self.reach[emission.slot]
            if emission not in self.written and not (emission in self.closed and is_committed):
                return False
        return True

    def compare(self) -> None:
        self.did("cut", self.reach)
        waiting = [offset for offset, *result in self.results if not self.is_durable(*result)]
        expected = min([self.next_offset, *waiting, *self.held])
        cut = self.cut.cut(dict(self.reach), lambda emission: emission not in self.closed)
        same("cut", cut, expected)
        holds("what is durable is not kept", self.cut.kept <= len(self.results) + len(self.failed))
        self.last = cut


def run_seed(draw: Random, did: Did) -> None:
    """Run one script of up to twenty operations."""
    script = CutScript(draw, did)
    for _ in range(draw.randint(4, 20)):
        script.step()


CORE = Core(run_seed)
