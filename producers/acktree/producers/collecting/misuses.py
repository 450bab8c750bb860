"""Calls of a bolt that break a rule: which tuples fail, so that the worker and the other tuples continue.

Invariant: a refused call is logged once with its stack and counted, and the tuples it names can no longer be
acked, even if the bolt swallows the exception. In ``execute`` of one tuple, that tuple also fails.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NoReturn

from acktree.core import world
from acktree.producers.collecting.counters import Counters
from acktree.producers.collecting.payloads import check_headers, check_payload
from acktree.producers.collecting.repeated_lines import RepeatedLines, caller
from acktree.producers.columns import Pairs
from acktree.producers.errors import AckedTwice, EmitAfterAck, Misuse, NotInHand, WrongThread, reason_of
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import ACKED, FAILED, IN_HAND, Owner, Tuple, is_over

log = logging.getLogger("acktree.bolt")


class Misuses:
    """Refuses calls of one collector, the ``owner``; ``undo_ack`` undoes a tuple's last ack."""

    def __init__(
        self,
        owner: Owner,
        counters: Counters,
        undo_ack: Callable[[Tuple, str], None],
        lines: RepeatedLines,
        guard: world.Lock,
    ) -> None:
        self.executing: Tuple | TupleBatch | None = None
        """What the bolt is executing; None between tuples, as in ``tick``."""
        self.raises_between_tuples = True
        """Whether a refused call between tuples raises; not in a worker, as ``tick`` handles many tuples."""
        self.threads = {world.thread_id()}
        """The threads that may call the collector: the bolt's, and that of the worker's loop."""
        self._guard = guard
        self._owner, self._counters, self._undo_ack, self._lines = owner, counters, undo_ack, lines
        self._reported: deque[list[Tuple]] = deque()

    @property
    def is_given_up(self) -> bool:
        """Whether what is executed will be read again, or has failed: nothing that it emits counts."""
        return isinstance(self.executing, Tuple) and is_over(self.executing)

    def check_thread(self, verb: str) -> None:
        """Raise WrongThread for another thread."""
        if world.thread_id() not in self.threads:
            raise WrongThread(
                f"cannot {verb} in thread {world.thread_name()!r}: a collector may be called only by "
                "the thread that calls execute; return results to that thread, or subclass AsyncBolt"
            )

    def check_emission(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Pairs | None,
        timestamp_ms: int | None,
    ) -> None:
        """Raise NotSerializable, ReservedHeader or WrongThread for what cannot be emitted from here."""
        self.check_thread("emit")
        check_payload(value, key, timestamp_ms)
        if headers is not None:
            check_headers(headers)

    def check_anchor(self, parent: Tuple) -> bool:
        """Return whether a tuple is in hand; False for one that the worker has dropped or failed.

        Raises:
            NotInHand, EmitAfterAck: see their docstrings.
        """
        if parent._collector is not self._owner:
            raise NotInHand(f"cannot emit anchored to {parent!r}: it was not handed out by this collector")
        if parent._state is not IN_HAND and not is_over(parent):
            raise EmitAfterAck(f"cannot emit anchored to {parent!r}: emit first, then ack")
        return parent._state is IN_HAND

    def check_in_hand(self, tup: Tuple, verb: str) -> bool:
        """Return whether a tuple is in hand; refuse the call if the bolt has no right to make it."""
        try:
            self.check_thread(f"{verb} {tup!r}")
            if tup._collector is not self._owner:
                raise NotInHand(f"cannot {verb} {tup!r}: it was not handed out by this collector")
            if tup._state is not IN_HAND and not is_over(tup):
                raise AckedTwice(f"cannot {verb} {tup!r}: it was already acked or failed")
        except Misuse as misuse:
            self.refuse_call(misuse, (tup,))
            return False
        return tup._state is IN_HAND

    def refuse_call(self, misuse: Misuse, tuples: Iterable[Tuple] = ()) -> None:
        """Refuse a call that names some tuples: they can no longer be acked.

        In ``tick`` it returns. In a batch it returns if the call names a tuple of the batch; otherwise the
        whole batch fails and it raises the misuse. It raises the misuse where one tuple is executed, which
        fails, and in another thread.
        """
        if world.thread_id() not in self.threads:
            self.report(misuse, *tuples)
        with self._guard:
            self._refuse(misuse, tuples)

    def _refuse(self, misuse: Misuse, tuples: Iterable[Tuple]) -> None:
        reason = self._log(misuse)
        handed_out = self._handed_out(tuples)
        _mark_faulty(handed_out, reason)
        self._counters.misuses += 1
        executing = self.executing
        if executing is None:
            if self.raises_between_tuples:
                raise misuse
            return
        if isinstance(executing, TupleBatch):
            if any(tup._state is IN_HAND or tup._state is FAILED for tup in handed_out):
                return
            _mark_faulty(executing, reason)
            raise misuse
        _mark_faulty((executing,), reason)
        if executing._state is ACKED:
            self._undo_ack(executing, reason)
        raise misuse

    def report(self, misuse: Misuse, *tuples: Tuple) -> NoReturn:
        """Refuse a call of a thread that is not the collector's: its tuples can no longer be acked.

        Raises the misuse in that thread.
        """
        handed_out = self._handed_out(tuples)
        _mark_faulty(handed_out, self._log(misuse))
        self._reported.append(handed_out)
        raise misuse

    def _log(self, misuse: Misuse) -> str:
        """Log a refused call with its stack; return the reason to fail with."""
        misuse.is_logged = True
        reason, kind = reason_of(misuse), (type(misuse), caller())
        if not self._lines.counts(kind):
            text = f"a call was rejected: {reason}"
            self._lines.write_first(kind, logging.ERROR, text, {"action": "misuse"}, stack_info=True)
        return reason

    def _handed_out(self, tuples: Iterable[Tuple]) -> list[Tuple]:
        return [tup for tup in tuples if isinstance(tup, Tuple) and tup._collector is self._owner]

    def reported(self) -> Iterable[Tuple]:
        """Yield the tuples in hand that refused calls of other threads named, and count those calls."""
        while self._reported:
            tuples = self._reported.popleft()
            self._counters.misuses += 1
            yield from (tup for tup in tuples if tup._state is IN_HAND)


def _mark_faulty(tuples: Iterable[Tuple], reason: str) -> None:
    for tup in tuples:
        if tup._state is IN_HAND or tup._state is ACKED:
            tup._fault = tup._fault or reason
