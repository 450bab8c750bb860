"""Whose fault it is when a call of a bolt breaks a rule: tuples fail for it, the worker and the others go on.

Invariant: a call that is refused is logged once with its stack and counted, and the tuples it is about can
no longer be acked, also if the bolt swallows the exception. In ``execute`` of one tuple that one fails, too.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import NoReturn

from acktree.producers.errors import Misuse, WrongThread, reason_of
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import ACKED, FAILED, IN_HAND, Owner, Tuple
from acktree.producers.worker.counters import Counters

log = logging.getLogger("acktree.bolt")


class Faults:
    """Takes in refused calls for one collector, the ``owner``; ``take_back`` undoes a tuple's last ack."""

    def __init__(self, owner: Owner, counters: Counters, take_back: Callable[[Tuple, str], None]) -> None:
        self.executing: Tuple | TupleBatch | None = None
        """What the bolt handles right now; None between tuples, as in ``tick``."""
        self.raises_between = True
        """Whether a refused call between tuples raises; a worker's does not: ``tick`` serves many tuples."""
        self.thread = get_ident()
        """The only thread that may call the collector."""
        self._owner, self._counters, self._take_back = owner, counters, take_back
        self._reported: deque[list[Tuple]] = deque()

    def check_thread(self, verb: str) -> None:
        """Raise WrongThread for another thread."""
        if get_ident() != self.thread:
            raise WrongThread(
                f"cannot {verb} in thread {threading.current_thread().name!r}: a collector is called only by "
                "the thread that calls execute; take results back there, in execute or tick, or write an "
                "AsyncBolt"
            )

    def blame(self, misuse: Misuse, tuples: Iterable[Tuple] = ()) -> None:
        """Refuse a call that is about some tuples: they can no longer be acked.

        Where a batch is executed it returns, unless nobody of the batch is known to be guilty: then all are.
        In ``tick`` it returns. Raises the misuse elsewhere: where one tuple is executed, which fails with it,
        and in another thread.
        """
        if get_ident() != self.thread:
            self.report(misuse, *tuples)
        reason = _log(misuse)
        ours = self._ours(tuples)
        _spoil(ours, reason)
        self._counters.misuses += 1
        executing = self.executing
        if executing is None:
            if self.raises_between:
                raise misuse
            return
        if isinstance(executing, TupleBatch):
            if any(tuple._state is IN_HAND or tuple._state is FAILED for tuple in ours):
                return
            _spoil(executing, reason)
            raise misuse
        _spoil((executing,), reason)
        if executing._state is ACKED:
            self._take_back(executing, reason)
        raise misuse

    def report(self, misuse: Misuse, *tuples: Tuple) -> NoReturn:
        """Refuse a call in a thread that is not the collector's: its tuples can no longer be acked.

        Raises the misuse, in that thread.
        """
        ours = self._ours(tuples)
        _spoil(ours, _log(misuse))
        self._reported.append(ours)
        raise misuse

    def _ours(self, tuples: Iterable[Tuple]) -> list[Tuple]:
        return [tuple for tuple in tuples if isinstance(tuple, Tuple) and tuple._collector is self._owner]

    def reported(self) -> Iterable[Tuple]:
        """Yield the tuples in hand that calls of other threads were about, and count those calls."""
        while self._reported:
            tuples = self._reported.popleft()
            self._counters.misuses += 1
            yield from (tuple for tuple in tuples if tuple._state is IN_HAND)


def _log(misuse: Misuse) -> str:
    """Log a refused call with its stack, once; return the reason to fail with."""
    misuse.is_logged = True
    reason = reason_of(misuse)
    log.error("a call was refused: %s", reason, stack_info=True, extra={"action": "misuse"})
    return reason


def _spoil(tuples: Iterable[Tuple], reason: str) -> None:
    for tuple in tuples:
        if tuple._state is IN_HAND or tuple._state is ACKED:
            tuple._fault = tuple._fault or reason
