"""An acker partition, with its clock, cut and expiry, against explicit trees of edges; nothing here XORs.

Messages are lost, repeated and reordered; the acker crashes and folds again from a committed cut.
"""

from math import inf
from random import Random

from acker.tester import START_MS, Tester
from acker.trees import ModelTree, TreeMessage
from acktree.acker.folding.clock import UNKNOWN_MS
from acktree.acker.folding.cut import Positions
from acktree.acker.folding.expiry import AgeLimits
from cores.script import Core, Did, holds, same

TICK_MS = 10
MESSAGE_MS, ORPHAN_MS = 1_000, 2_000
STEP_MS = 900  # no leap of log time


class ClockModel:
    """Log time of one topic: the append times that a next record confirms, or the end of the log."""

    def __init__(self, position: int) -> None:
        self.position, self.time_ms = position, UNKNOWN_MS
        self.last_ms, self.awaited = UNKNOWN_MS, None

    def fold(self, times_ms: list[int], wall_ms: int) -> None:
        for ms in times_ms:
            self.position += 1
            if ms != UNKNOWN_MS:
                self.time_ms = max(self.time_ms, min(self.last_ms, ms, wall_ms))
                self.last_ms = ms
        self._reach()

    def observe(self, wall_ms: int, end: int) -> None:
        if self.awaited is None:
            self.awaited = wall_ms, end
        self._reach()

    def _reach(self) -> None:
        if self.awaited is not None and self.position >= self.awaited[1]:
            self.time_ms = max(self.time_ms, self.awaited[0])
            self.awaited = None


class PartitionScript:
    """A partition and trees; ``touched`` are roots of which something ended, or that lost their state."""

    def __init__(self, draw: Random, did: Did) -> None:
        self.draw, self.did = draw, did
        self.limits = AgeLimits(draw.choice((MESSAGE_MS, inf)), ORPHAN_MS, draw.choice((4_000, inf)))
        did("limits", self.limits)
        self.tester = Tester(self.limits, eager=False, seed=draw.getrandbits(64))
        self.trees: dict[int, ModelTree] = {}
        self.waiting: list[tuple[int, int]] = []
        self.committed = self.cut = Positions(0, 0)
        self.clocks = ClockModel(0), ClockModel(0)
        self.edges = 0
        self.ended: set[int] = set()
        self.misdated: set[int] = set()
        self.seen = [0, 0, 0]

    def step(self) -> None:
        kind = self.draw.random()
        if kind < 0.25:
            self.emit()
        elif kind < 0.5:
            self.work()
        elif kind < 0.57:
            self.fail_or_reset()
        elif kind < 0.82:
            self.fold()
        elif kind < 0.93:
            self.wait(self.draw.choice((10, 100, 300, 900, 3_000)))
        elif kind < 0.96:
            self.committed = self.tester.partition.cut
            self.did("commit", self.committed)
        else:
            self.crash()
        self.check()

    # What is appended to the log.

    def _edges(self, count: int) -> frozenset[int]:
        self.edges += count
        return frozenset(1 << edge for edge in range(self.edges - count, self.edges))

    def emit(self) -> None:
        tree = ModelTree(len(self.trees) + 1, [TreeMessage(self._edges(self.draw.choice((0, 1, 1, 2))))])
        self.trees[tree.root] = tree
        self.send(tree.root, 0)

    def work(self) -> None:
        """Let a task consume an edge, and send its ack at once or later."""
        growing = [tree for tree in self.trees.values() if tree.open_edges]
        if growing and self.draw.random() < 0.7:
            tree = self.draw.choice(growing)
            edge, children = self.draw.choice(tree.open_edges), self._edges(self.draw.choice((0, 0, 0, 1)))
            self.send(tree.root, tree.grow(edge, children))
        elif self.waiting:
            self.append(*self.waiting.pop())

    def send(self, root: int, number: int) -> None:
        times = self.draw.choice((0, 1, 1, 1, 1, 2))
        if not times:
            self.waiting.append((root, number))
        for _ in range(times):
            self.append(root, number)

    def append(self, root: int, number: int) -> None:
        tree, tester = self.trees[root], self.tester
        log, append = (tester.ack_log, tester.ack) if number else (tester.init_log, tester.init)
        self.did("ack" if number else "init", root, sorted(tree.messages[number].edges), "at", len(log))
        tree.arrived.setdefault(number, []).append((len(log), tester.now_ms))
        append(root, *tree.messages[number].edges)
        if self.draw.random() < 0.05:  # a wrong timestamp, or none
            wrong_ms = self.draw.choice((UNKNOWN_MS, START_MS - 500, tester.now_ms + 700))
            self.did("appended at", wrong_ms)
            self.misdated.add(root)
            log[-1] = (wrong_ms, log[-1][1])

    def fail_or_reset(self) -> None:
        if not self.trees:
            return
        tree, is_fail = self.draw.choice([*self.trees.values()]), self.draw.random() < 0.5
        self.did("fail" if is_fail else "reset", tree.root, "at", len(self.tester.ack_log))
        (tree.fails if is_fail else tree.resets).append((len(self.tester.ack_log), self.tester.now_ms))
        (self.tester.fail if is_fail else self.tester.reset)(tree.root)

    # What the acker does.

    def fold(self) -> None:
        at, is_all = self.tester.partition.positions, self.draw.random() < 0.4
        inits = len(self.tester.init_log) if is_all else at.inits + self.draw.randint(0, 3)
        acks = len(self.tester.ack_log) if is_all else at.acks + self.draw.randint(0, 3)
        self.fold_to(inits, acks)

    def fold_to(self, inits: int, acks: int) -> None:
        self.did("fold", inits, acks)
        before = self.tester.partition.positions
        now_ms = self.tester.now_ms
        self.clocks[0].fold([ms for ms, _ in self.tester.init_log[before.inits : inits]], now_ms)
        self.clocks[1].fold([ms for ms, _ in self.tester.ack_log[before.acks : acks]], now_ms)
        self.tester.fold(inits, acks)
        ends = (min(inits, len(self.tester.init_log)), min(acks, len(self.tester.ack_log)))
        same("positions", self.tester.partition.positions, tuple(map(max, before, ends)))

    def wait(self, ms: int) -> None:
        self.did("wait", ms)
        self.tester.now_ms += ms
        self._observe()

    def _observe(self) -> None:
        self.tester.observe().expire()
        ends = len(self.tester.init_log), len(self.tester.ack_log)
        for clock, end in zip(self.clocks, ends, strict=True):
            clock.observe(self.tester.now_ms, end)

    def crash(self) -> None:
        """Lose the state; what was held is held again once the log is folded to the same positions."""
        tester = self.tester
        at, before = tester.partition.positions, {root: tester.entry(root) for root in self.trees}
        self.did("crash", self.committed, at)
        tester.crash(self.committed)
        self.cut = self.committed
        self.clocks = ClockModel(self.committed.inits), ClockModel(self.committed.acks)
        same("positions at the cut", tester.partition.positions, self.committed)
        self.fold_to(*at)
        for root, held in before.items():
            found = tester.entry(root)
            if held is None or root in self.ended or self._may_be_let_pass(self.trees[root]):
                continue
            content = None if found is None else found[:4]
            is_acked = found is None and root in {root for _, root in tester.acked[self.seen[0] :]}
            holds(
                f"root {root} after the crash: {content}, before {held[:4]}", content == held[:4] or is_acked
            )

    # What must hold.

    def check(self) -> None:
        tester = self.tester
        at, cut, time_ms = tester.partition.positions, tester.partition.cut, tester.partition.clock.time_ms
        for _, root in tester.acked[self.seen[0] :]:
            holds(f"root {root} is acked early", self.trees[root].is_whole(*at))
        for _, root, _ in tester.failed[self.seen[1] :]:
            holds(f"root {root} failed without a fail", any(o < at.acks for o, _ in self.trees[root].fails))
        for _, root in tester.timed_out[self.seen[2] :]:
            self._was_timed_out(self.trees[root], time_ms)
        results = (tester.acked, tester.failed, tester.timed_out)
        self.ended |= {one[1] for each, seen in zip(results, self.seen, strict=True) for one in each[seen:]}
        self.seen = [*map(len, results)]
        same("log time", time_ms, min(clock.time_ms for clock in self.clocks))
        holds("the cut went back", all(now >= before for now, before in zip(cut, self.cut, strict=True)))
        holds("the cut is ahead", cut.inits <= at.inits and cut.acks <= at.acks)
        self.cut = cut
        held = [tree for tree in self.trees.values() if tester.entry(tree.root) is not None]
        same("size", len(tester.partition.table), len(held))
        if not held:
            same("cut of nothing", cut, at)
        for tree in held:
            self._is_above(tree, cut)

    def _was_timed_out(self, tree: ModelTree, time_ms: int) -> None:
        is_old = time_ms - min(ms for _, ms in tree.arrived[0]) > min(
            self.limits.message_ms, self.limits.life_ms
        )
        resets = [ms for offset, ms in tree.resets if offset < self.tester.partition.positions.acks]
        is_reset = self.limits.life_ms == inf and any(time_ms - ms < MESSAGE_MS - TICK_MS for ms in resets)
        if tree.root in self.misdated:  # a wrong timestamp moves its own root
            return
        holds(f"root {tree.root} is timed out early", is_old and (not is_reset or tree.root in self.ended))

    def _is_above(self, tree: ModelTree, cut: Positions) -> None:
        """Check that all that was folded of a root held lies at or above the cut."""
        if tree.root in self.ended or self._may_be_let_pass(tree):
            return
        places = [offset for offset, _ in tree.arrived.get(0, [])]
        holds(f"an init of root {tree.root} is below the cut", all(offset >= cut.inits for offset in places))
        places = [offset for offset, _ in tree.said_by_workers]
        holds(f"an ack of root {tree.root} is below the cut", all(offset >= cut.acks for offset in places))

    def end(self) -> None:
        """Fold everything: whole trees are acked. Then the rest ends, and the cut is the end of the log."""
        self.fold_to(len(self.tester.init_log), len(self.tester.ack_log))
        self.check()
        for tree in self.trees.values():
            if tree.is_plain and tree.is_whole() and not self._may_be_let_pass(tree):
                holds(f"root {tree.root} is whole and open", tree.root in self.ended)
        leap_ms = self.tester.now_ms - START_MS  # for as long as that, timeouts may be held back
        for _ in range((2 * ORPHAN_MS + MESSAGE_MS + leap_ms) // STEP_MS):
            self.tester.now_ms += STEP_MS
            self._observe()
        self.did("end")
        self.check()
        table = self.tester.partition.table
        same("orphans in the end", table.orphans, 0)
        if self.limits.message_ms < inf or self.limits.life_ms < inf:
            same("held in the end", len(table), 0)

    def _may_be_let_pass(self, tree: ModelTree) -> bool:
        """Return whether the root may have been an orphan for so long that it is dropped or holds no cut."""
        if tree.root in self.misdated:
            return True
        places = [*tree.arrived.get(0, []), *tree.said_by_workers]
        age_ms = self.tester.now_ms - min(ms for _, ms in places)
        silence_ms = tree.longest_silence_ms(self.tester.now_ms)
        return age_ms >= self.limits.life_ms or silence_ms >= min(self.limits.hold_ms, ORPHAN_MS) - 1


def run_seed(draw: Random, did: Did) -> None:
    """Run one script of up to fourteen operations, then let everything end."""
    script = PartitionScript(draw, did)
    did("from", START_MS)
    for _ in range(draw.randint(2, 14)):
        script.step()
    script.end()


CORE = Core(
    run_seed, {"acktree.acker.folding.table.LEAST_SLOTS": 8, "acktree.acker.folding.finished.LEAST_PLACES": 8}
)
