"""A hypothesis state machine: explicit trees against the fold, expiry, cut and memory of one partition.

Messages are lost, repeated and late; the acker stalls, crashes, loses its partition and gets it back, while a
zombie that does not know goes on. The results are compared with the trees; what was appended is recorded.
"""

import random
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acker.tester import Tester
from acker.trees import ModelTree, TreeMessage
from acktree.acker.folding.expiry import AgeLimits

TIMEOUT_S, ORPHAN_S, RETENTION_S = 3, 30, 6000
LIMITS = AgeLimits.of_seconds(TIMEOUT_S, ORPHAN_S, RETENTION_S)
TIMEOUT_MS = 1000 * TIMEOUT_S
CROWD = 40
LEAST_SLOTS = 16
PICK = st.integers(0, 999)


class AckerMachine(RuleBasedStateMachine):
    """``results[root]`` are its results; ``events`` is what arrived on the topics, and crashes."""

    first_root = 1
    recorded: list["AckerMachine"] | None = None

    def __init__(self):
        super().__init__()
        self.small = patch("acktree.acker.folding.table.LEAST_SLOTS", LEAST_SLOTS)
        self.small.start()
        self.tester = Tester(LIMITS, eager=False)
        self.trees, self.flying, self.results, self.events = {}, [], {}, []
        self.committed = self.start = self.tester.partition.positions
        self.zombie = None
        self.seen = {"acked": 0, "failed": 0, "timed_out": 0}

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed):
        self.source = random.Random(seed)
        self.tester.observe().expire()

    # Workers.

    def _edges(self, count):
        return frozenset(self.source.getrandbits(64) | 1 for _ in range(count))

    def _plant(self, edges):
        tree = ModelTree(self.first_root + len(self.trees), [TreeMessage(self._edges(edges))])
        self.trees[tree.root] = tree
        return tree

    @rule(draw=st.randoms(use_true_random=False), count=st.integers(1, 12))
    def work(self, draw, count):
        """Trees are begun and grow; messages arrive in any order, some twice, some never, some very late."""
        for _ in range(count):
            draw.choice([self._emit, self._consume, self._arrive, self._arrive, self._come_late])(draw)

    def _emit(self, draw):
        self.flying.append((self._plant(draw.choice([0, 1, 1, 2, 3])).root, 0))

    def _consume(self, draw):
        growing = [tree for tree in self.trees.values() if tree.open_edges]
        if growing:
            tree = draw.choice(growing)
            children = self._edges(draw.choice([0, 0, 1, 2]))
            self.flying.append((tree.root, tree.grow(draw.choice(tree.open_edges), children)))

    def _arrive(self, draw):
        if self.flying:
            message = self.flying.pop(draw.randrange(len(self.flying)))
            for _ in range(draw.choice([0, 1, 1, 1, 1, 1, 1, 1, 2, 3])):
                self._append(*message)

    def _come_late(self, draw):
        if self.results:
            tree = self.trees[draw.choice(sorted(self.results))]
            self._append(tree.root, draw.randrange(len(tree.messages)))

    @rule()
    def all_arrive(self):
        while self.flying:
            self._append(*self.flying.pop(self.source.randrange(len(self.flying))))

    @rule()
    def crowd_in(self):
        """So many trees arrive that the table, made small, grows; it shrinks when their acks have come."""
        trees = [self._plant(1) for _ in range(CROWD)]
        for tree in trees:
            self.flying.append((tree.root, tree.grow(*tree.messages[0].made, ())))
        self._append_inits(trees)

    @precondition(lambda self: self.trees)
    @rule(pick=PICK, is_fail=st.booleans())
    def fail_or_reset(self, pick, is_fail):
        tree = self._some_tree(pick)
        places = tree.fails if is_fail else tree.resets
        places.append((len(self.tester.ack_log), self.tester.now_ms))
        (self.tester.fail if is_fail else self.tester.reset)(tree.root)
        self.events.append(("fail" if is_fail else "reset", [(tree.root,)]))

    def _some_tree(self, pick):
        roots = sorted(self.trees)
        return self.trees[roots[-1 - pick % min(len(roots), 20)]]

    def _append(self, root, number):
        if not number:
            self._append_inits([self.trees[root]])
            return
        tree, edges = self.trees[root], self.trees[root].messages[number].edges
        tree.arrived.setdefault(number, []).append((len(self.tester.ack_log), self.tester.now_ms))
        self.tester.ack(root, *edges)
        self.events.append(("ack", [(root, *edges)]))

    def _append_inits(self, trees):
        for tree in trees:
            tree.arrived.setdefault(0, []).append((len(self.tester.init_log), self.tester.now_ms))
        inits = [(tree.root, *tree.messages[0].made) for tree in trees]
        self.tester.init_edges(inits)
        self.events.append(("init", inits))

    # Time and the acker.

    @rule(ms=st.sampled_from([50, 300, 1000, 2500]), is_reading=st.booleans())
    def pass_time(self, ms, is_reading):
        if is_reading:
            self.tester.fold_all()
        self.tester.wait(ms, 250)
        self._check_results()

    @rule(ms=st.sampled_from([2000, 40_000]))
    def stand_still(self, ms):
        self.tester.now_ms += ms
        self.tester.observe().expire()
        self._check_results()

    @rule(inits=st.integers(0, 9), acks=st.integers(0, 9))
    def fold_some(self, inits, acks):
        at = self.tester.partition.positions
        self.tester.fold(at.inits + inits, at.acks + acks).expire()
        self._check_results()

    @rule()
    def fold_all(self):
        self.tester.fold_all()
        self._check_results()

    @rule()
    def commit(self):
        self.committed = self.tester.partition.cut

    @rule(has_committed=st.booleans())
    def crash(self, has_committed):
        if has_committed:
            self.commit()
        self.tester.crash(self.committed)
        self.start = self.committed
        self.events.append(("crash", []))

    @rule()
    def hand_over(self):
        """Another owner takes the partition at the committed cut; the old one has not noticed."""
        self.zombie = self.tester.partition
        self.tester.crash(self.committed)
        self.start = self.committed

    @precondition(lambda self: self.zombie)
    @rule(inits=st.integers(0, 9), acks=st.integers(0, 9))
    def zombie_goes_on(self, inits, acks):
        owner, start = self.tester.partition, self.start
        self.tester.partition, at = self.zombie, self.zombie.positions
        self.start = type(start)(0, 0)
        self.tester.fold(at.inits + inits, at.acks + acks).observe().expire()
        self._check_results()
        self.tester.partition, self.start = owner, start

    # What must hold.

    def _check_results(self):
        """Compare the new results with the trees."""
        tester, checks = self.tester, (("acked", self._was_acked), ("failed", self._was_failed))
        for name, check in (*checks, ("timed_out", self._was_timed_out)):
            results = getattr(tester, name)
            for _, root, *_ in results[self.seen[name] :]:
                check(self.trees[root])
                self.results.setdefault(root, []).append(name)
            self.seen[name] = len(results)

    def _was_acked(self, tree):
        assert tree.is_whole(*self.tester.partition.positions), "acked early"

    def _was_failed(self, tree):
        at = self.tester.partition.positions
        assert any(offset < at.acks for offset, _ in tree.fails), "failed without a fail"

    def _was_timed_out(self, tree):
        at, now_ms = self.tester.partition.positions, self.tester.now_ms
        resets = [ms for offset, ms in tree.resets if self.start.acks <= offset < at.acks]
        age_ms = now_ms - max(min(ms for _, ms in tree.arrived[0]), *resets, 0)
        assert age_ms > TIMEOUT_MS, "timed out early"
        is_excused = tree.root in self.results or not tree.is_plain or self._outlived_its_hold(tree)
        assert is_excused or not tree.is_whole(*at), "a complete tree was timed out"

    def _outlived_its_hold(self, tree):
        """Return whether early acks may hold the cut no longer, give or take a bucket and a scan."""
        return tree.longest_silence_ms(self.tester.now_ms) > LIMITS.hold_ms - 1

    @invariant()
    def the_cut_lies_below_all_that_is_undecided_and_never_goes_back(self):
        cut = self.tester.partition.cut
        assert all(now >= before for now, before in zip(cut, self.start, strict=True))
        for tree in self.trees.values():
            if tree.root in self.results or self._outlived_its_hold(tree):
                continue
            assert all(cut.inits <= offset for offset, _ in tree.arrived.get(0, []))
            assert all(cut.acks <= offset for offset, _ in tree.said_by_workers)

    @invariant()
    def the_table_agrees_with_itself(self):
        table = self.tester.partition.table
        assert int(table.bucket_counts.sum()) == len(table)
        assert 0 <= table.pending <= len(table)

    def teardown(self):
        try:
            if hasattr(self, "source"):
                self._end()
        finally:
            self.small.stop()

    def _end(self):
        """Let everything arrive: every root gets its result, and nothing is left."""
        self.all_arrive()
        self.tester.fold_all().wait(3 * TIMEOUT_MS, 250)
        self._check_results()
        for tree in self.trees.values():
            assert not tree.arrived.get(0) or tree.root in self.results, "no result"
            is_sure = tree.is_plain and tree.is_whole() and not self._outlived_its_hold(tree)
            assert not is_sure or {"acked", "timed_out"} & set(self.results[tree.root])
        assert self.tester.partition.table.pending == 0
        self.tester.wait(1000 * ORPHAN_S + 3000, 500)
        assert len(self.tester.partition.table) == 0
        assert self.tester.partition.cut == self.tester.partition.positions
        if self.recorded is not None:
            self.recorded.append(self)
