"""The fails of tuples on their way to the packer: the tuple's coordinates, the reason, the stack trace.

Invariant: a fail names the record that failed, not its value, which stays on its topic alone.
"""

import traceback
from collections.abc import Callable

from acktree.producers.kafka.packing import AckPacker
from acktree.producers.tuples import Tuple
from acktree.producers.worker.counters import Counters
from acktree.schemas.control_records import BACK_OFF, FailedTuple

MAX_FRAMES = 40
"""So many of a stack trace's innermost frames are formatted."""


class Fails:
    """Packs and counts the fails of one collector."""

    def __init__(self, packer: AckPacker, counters: Counters) -> None:
        self.on_failed: Callable[[str], object] = lambda _reason: None
        """Called with the reason of every tuple that fails."""
        self._packer, self._counters = packer, counters

    def pack(self, tup: Tuple, reason: str, retry_after_ms: int = BACK_OFF, stack: str = "") -> None:
        """Fail the roots of a tuple: ``retry_after_ms`` is a delay, BACK_OFF or NEVER."""
        if tup._anchors:
            failed = FailedTuple(tup.topic, tup.partition, tup.offset, stack)
            for version, root, _ in tup.anchors:
                self._packer.fail(version, root, reason, retry_after_ms, failed)
        self._counters.failed += 1
        self.on_failed(reason)


def stack_of(error: BaseException | None) -> str:
    """Return the stack trace of an exception and of those behind it; "" for None.

    Its own text is left out, as the reason has it: so tuples that fail at one place have one stack.

    >>> def check(word): raise ValueError(word)
    >>> try:
    ...     check("a")
    ... except ValueError as error:
    ...     "check" in stack_of(error), "ValueError" in stack_of(error), stack_of(None)
    (True, False, '')
    """
    if error is None or error.__traceback__ is None:
        return ""
    try:
        found = traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES)
        lines, own = list(found.format()), list(found.format_exception_only())
    except Exception:  # an exception of user code may be anything, and must not stop the worker
        return ""
    return "".join(lines[: -len(own)] if lines[-len(own) :] == own else lines)
