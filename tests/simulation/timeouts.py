"""Checks that no root times out before its time, long after it, or without a cause.

Invariant: it compares append times of the log only. An acker times a root out at a log time up to which it
has folded everything, so no ack appended before can be unknown to it. Where a clock was set nothing is
checked, and a delay only where no fault could have held timeouts back.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from acktree.schemas.control_records import Ack, Cause, Result
from acktree.testing.kafka.log import Outcome, Transaction

TICK_S = 0.02
"""What the ages in an acker's table may lack."""
SLACK_S = 1.0
"""What an idle turn of an acker, 0.9 s here, and the way to the log may add to the latest time."""
LONG_TRANSACTION_S = 0.5
"""What a transaction may take from an acker's time: no log ends beyond the first record of an open one. A
longer one counts as a fault."""
ORPHAN_PART = 0.5
"""The part of a message timeout for which acks without an init surely hold an acker's cut."""
SETTLE_S = 60.0
"""Within what ackers have caught up when everything is healed: a session of KIP-848 ends after 45 s."""
HARMLESS = frozenset(
    (
        "another transaction",
        "bad deploy",
        "change the message timeout",
        "compact the registry",
        "compact the source",
        "delete read results",
        "forget the offsets of an empty group",
        "grow a topic",
        "grow the source",
        "repeat an ack",
        "repeat an init",
        "slow bolt",
        "transactions in the source",
        "truncate the source",
        "wait for silence",
    )
)
"""The kinds of fault that keep no acker from its work and hold back no end of a control topic."""


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
        if now_s < due_s - TICK_S:
            self.found.append(f"root {root:x} timed out at {now_s:.3f} s, before {due_s:.3f} s")
        self._check_cause(root)
        last_s = max([inits[-1], *resets])
        latest_s = max(last_s, self.calm_since_s) + 1.1 * self.longest_s + 1.0 + SLACK_S + LONG_TRANSACTION_S
        if last_s < self.calm_since_s:
            latest_s += self.longest_s  # held back, so that acks in flight arrive first
        if now_s > latest_s:
            self.found.append(f"root {root:x} timed out at {now_s:.3f} s, after {latest_s:.3f} s")
        if last_s >= self.calm_since_s:
            self.counters["timeout in calm"] += 1

    def _check_cause(self, root: int) -> None:
        inits = self._inits[root]
        if len(inits) > 1 or root in self._repeated or root in self._acked:
            return
        first_ack_s, last_ack_s = self._acks.get(root, (inf, -inf))
        if first_ack_s < inits[0] - ORPHAN_PART * self.shortest_s:
            return  # an orphan no longer holds the cut, so the next owner may fold the init alone
        if last_ack_s < inits[0] + self.shortest_s - TICK_S and self.is_done(root):
            self.found.append(f"root {root:x} timed out, and its tree was done at {last_ack_s:.3f} s")
