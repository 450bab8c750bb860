"""Checks that no root times out before its time, long after it, without a cause, or while a tuple waits.

Invariant: it compares append times of the log only. An acker times a root out at a log time up to which it
has folded everything, so no ack appended before can be unknown to it. Where a clock was set nothing is
checked, and a delay only where no fault could have held timeouts back.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import inf

from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.testing.idle import ACKER_TURN_S, IDLE_TURN_S
from acktree.testing.kafka.broker.committed import Committed
from acktree.testing.kafka.broker.log import Outcome, Transaction
from acktree.wire.control_records import Ack, Cause, Result
from simulation.repeats import Place

TICK_S = 0.02
"""What the ages in an acker's table may lack."""
LOOK_S = 1.0
"""How long an acker pauses at most between two looks at how far the bolts are."""
COMMIT_S = AtLeastOnce.commit_interval_s + IDLE_TURN_S
"""Within what a worker commits what it has executed."""
SLACK_S = 0.5
"""What all the requests of an acker may take that lead to a timeout, and the way of the result to the log."""
LONG_TRANSACTION_S = 0.5
"""What a transaction may take from an acker's time: no log ends beyond the first record of an open one. A
longer one counts as a fault."""
ORPHAN_PART = 0.5
"""The part of a message timeout for which acks without an init surely hold an acker's cut."""
SETTLE_S = 60.0
"""Within what ackers have caught up when everything is healed: a session of KIP-848 ends after 45 s."""
HARMLESS = frozenset(
    (
        "change the message timeout",
        "compact the registry",
        "compact the source",
        "compact the state",
        "delete read results",
        "forget the offsets of an empty group",
        "grow a topic",
        "grow the source",
        "repeat an ack",
        "repeat an init",
        "transactions in the source",
        "truncate the source",
        "wait for silence",
    )
)
"""The kinds of fault that keep no acker and no bolt from its work and hold back no end of a control topic."""


def _longest_age_s(timeout_s: float) -> float:
    """Return how old a tree may be when it times out, where nothing holds timeouts back: docs/acker.md.

    An acker that turns to its timeouts asks where the control logs end, and learns it in the next turn: twice
    until it is old enough by log time, and twice until what bolts had committed when it looked is folded.
    Between them it may pause before its look, and look again once the bolts have committed what was there.
    Turns are longer here: a step of log time may count as a leap, which holds timeouts back by its length.
    """
    turn_s = min(max(timeout_s / 30, 0.1), 1.0) + ACKER_TURN_S
    turns = 5 if turn_s > max(1.0, timeout_s / 10) else 4
    looks_s = LOOK_S + COMMIT_S + LOOK_S
    return timeout_s + TICK_S + turns * turn_s + looks_s + LONG_TRANSACTION_S + SLACK_S


@dataclass(eq=False)
class Timeouts:
    """See the module."""

    counters: Counter[str]
    is_done: Callable[[int], bool]
    """Whether all of a root's tree was executed exactly once, and committed by all readers."""
    found: list[str] = field(default_factory=list)
    """Promises that are broken."""
    shortest_s: float = inf
    longest_s: float = 0.0
    """The shortest and the longest message timeout that was published."""
    calm_since_s: float = 0.0
    """Since when nothing has kept ackers from their work; ``inf`` while something does."""
    _inits: dict[int, list[float]] = field(default_factory=dict)
    _resets: dict[int, list[float]] = field(default_factory=dict)
    _acks: dict[int, tuple[float, float]] = field(default_factory=dict)
    """When the first and the last ack of a root was appended."""
    _repeated: set[int] = field(default_factory=set)
    """Roots of control records that a broker has appended twice: two equal acks cancel each other."""

    _acked: set[int] = field(default_factory=set)
    """Roots that are acked: the next owner of a partition may fold a part of them again."""

    has_slow_bolt: bool = False
    """Whether a bolt is slower than its backlog: then a timeout is as late as its queue is long."""
    log_start: Callable[[str, int], int] = lambda _topic, _partition: 0
    """The first offset that is left of a partition."""
    readers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The bolts that read each topic."""
    lost: AbstractSet[Place] = frozenset()
    """What a broker has lost, with what takes its place: it need not wait for a bolt."""
    _tuples: dict[int, list[tuple[Place, float]]] = field(default_factory=dict)
    """The tuples of each root, and when they were appended."""
    _committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """How far each bolt has ever committed a partition."""

    _open: dict[Transaction, float] = field(default_factory=dict)
    """Since when transactions hold back the end of a control topic, and so log time."""

    def publish(self, timeout_s: float) -> None:
        """Record a message timeout that ackers may apply from now on."""
        self.shortest_s = min(self.shortest_s, timeout_s)
        self.longest_s = max(self.longest_s, timeout_s)

    def strike(self, kind: str) -> None:
        """Record that a fault strikes."""
        if kind not in HARMLESS:
            self.calm_since_s = inf

    def heal(self, now_s: float) -> None:
        """Record that all faults have ended."""
        if self.calm_since_s == inf:
            self.calm_since_s = now_s + SETTLE_S

    def look_at(self, transaction: Transaction | None, now_s: float) -> None:
        """Record the transaction of a control record: a long one holds timeouts back until it ends."""
        if transaction is not None:
            self._open.setdefault(transaction, now_s)
        self._look_at_open(now_s)

    def _look_at_open(self, now_s: float) -> None:
        if any(now_s - since_s > LONG_TRANSACTION_S for since_s in self._open.values()):
            self.calm_since_s = max(self.calm_since_s, now_s)
        for transaction in [each for each in self._open if each.outcome is not Outcome.OPEN]:
            del self._open[transaction]

    def add_inits(self, roots: list[int], now_s: float, *, is_repeated: bool) -> None:
        """Record an init that was appended."""
        for root in roots:
            self._inits.setdefault(root, []).append(now_s)
        if is_repeated:
            self._repeated.update(roots)

    def add_ack(self, ack: Ack, now_s: float, *, is_repeated: bool) -> None:
        """Record acks, fails and resets that were appended."""
        roots = ack.acks["root"].tolist()
        for root in roots:
            self._acks[root] = self._acks.get(root, (now_s, now_s))[0], now_s
        for root in ack.resets.tolist():
            self._resets.setdefault(root, []).append(now_s)
        if is_repeated:
            self._repeated.update(roots)

    def add_tuple(self, root: int, place: Place, now_s: float) -> None:
        """Record a tuple that was appended."""
        self._tuples.setdefault(root, []).append((place, now_s))

    def see_commits(self, bolt: str, offsets: Mapping[tuple[str, int], Committed]) -> None:
        """Record what a bolt has committed; what an operator takes back of it was worked off before."""
        for (topic, partition), committed in offsets.items():
            place = bolt, topic, partition
            self._committed[place] = max(self._committed.get(place, 0), committed.offset)

    def check(self, result: Result, now_s: float) -> None:
        """Check the roots of a result that have timed out."""
        self._look_at_open(now_s)
        self._acked.update(result.acked.tolist())
        for failure in result.failed:
            if failure.cause is Cause.TIMED_OUT and failure.root in self._inits:
                self._check(failure.root, now_s)

    def _check(self, root: int, now_s: float) -> None:
        inits, resets = self._inits[root], self._resets.get(root, [])
        due_s = inits[0] + self.shortest_s
        for reset_s in resets:
            if reset_s <= due_s:
                due_s = max(due_s, reset_s + self.shortest_s)
        last_ack_s = self._acks.get(root, (0.0, 0.0))[1]
        if now_s < due_s - TICK_S:
            self.found.append(f"root {root:x} timed out at {now_s:.3f} s, before {due_s:.3f} s")
        self._check_cause(root)
        self._check_nothing_waits(root, due_s)
        last_s = max([inits[-1], last_ack_s, *resets])
        latest_s = max(last_s, self.calm_since_s) + _longest_age_s(self.longest_s)
        if last_s < self.calm_since_s:
            latest_s += self.longest_s  # held back, so that acks in flight arrive first
        if now_s > latest_s and not self.has_slow_bolt:
            self.found.append(f"root {root:x} timed out at {now_s:.3f} s, after {latest_s:.3f} s")
        if last_s >= self.calm_since_s:
            self.counters["timeout in calm"] += 1

    def _check_nothing_waits(self, root: int, due_s: float) -> None:
        """Find a tuple of a root that timed out which a bolt has not read: it is executed without a cause."""
        for (topic, partition, offset), appended_s in self._tuples.get(root, ()):
            if (topic, partition, offset) in self.lost:
                continue
            for bolt in self.readers.get(topic, ()):
                reached = self._committed.get((bolt, topic, partition), 0)
                is_waiting = offset >= max(reached, self.log_start(topic, partition))
                if is_waiting and appended_s < due_s - TICK_S:
                    text = f"root {root:x} timed out while {topic}/{partition}@{offset} waited for {bolt}"
                    self.found.append(text)

    def _check_cause(self, root: int) -> None:
        inits = self._inits[root]
        if len(inits) > 1 or root in self._repeated or root in self._acked:
            return
        first_ack_s, last_ack_s = self._acks.get(root, (inf, -inf))
        if first_ack_s < inits[0] - ORPHAN_PART * self.shortest_s:
            return  # an orphan no longer holds the cut, so the next owner may fold the init alone
        if last_ack_s < inits[0] + self.shortest_s - TICK_S and self.is_done(root):
            self.found.append(f"root {root:x} timed out, and its tree was done at {last_ack_s:.3f} s")
