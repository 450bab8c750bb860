"""The fails of tuples on their way to the packer: the tuple's coordinates, the reason, the stack trace.

Invariant: a fail names the record that failed, not its value, which stays on its topic alone. Many cost
few stack traces: one is formatted once a flush for all that failed at its place.
"""

import traceback
from collections import deque
from collections.abc import Callable, Hashable

from acktree.producers.collecting.arithmetic.packing import MAX_STACKS, AckPacker
from acktree.producers.collecting.counters import Counters
from acktree.producers.errors import reason_of
from acktree.producers.tuples import Tuple
from acktree.wire.control_records import BACK_OFF, FailedTuple

MAX_FRAMES = 40
"""So many of a stack trace's innermost frames are formatted."""


class Fails:
    """Packs and counts the fails of one collector."""

    def __init__(self, packer: AckPacker, counters: Counters) -> None:
        self.on_failed: Callable[[str], object] = lambda _reason: None
        """Called with the reason of every tuple that fails."""
        self._packer, self._counters = packer, counters
        self._stacks: dict[Hashable, str] = {}

    def stack_of(self, tup: Tuple, error: BaseException | None, place: Hashable = None) -> str:
        """Return the stack trace of an exception that fails a tuple; "" where it would not be sent.

        ``place`` is its ``place_of``, if that is known.
        """
        if error is None or not tup._anchors:
            return ""
        place = place_of(error) if place is None else place
        found = self._stacks.get(place)
        if found is None and len(self._stacks) < MAX_STACKS:
            found = self._stacks[place] = stack_of(error)
        return found or ""

    def begin_flush(self) -> None:
        """Take other stack traces from now on: those up to here are sent."""
        self._stacks.clear()

    def pack(self, tup: Tuple, reason: str, retry_after_ms: int = BACK_OFF, stack: str = "") -> None:
        """Fail the roots of a tuple: ``retry_after_ms`` is a delay, BACK_OFF or NEVER."""
        if tup._anchors:
            failed = FailedTuple(tup.topic, tup.partition, tup.offset, stack)
            for version, root, _ in tup.anchors:
                self._packer.fail(version, root, reason, retry_after_ms, failed)
        self._counters.failed += 1
        self.on_failed(reason)


def cut_traceback(error: BaseException) -> None:
    """Cut off the traceback of an exception, just caught, what it had when this code caught it before.

    Python chains the traceback of each ``raise`` onto that of the one before: for a bolt that raises one
    object again and again it would grow with each failure, and keep every frame.
    """
    traced = caught = error.__traceback__
    while traced is not None and caught is not None:
        if traced.tb_next is not None and traced.tb_next.tb_frame.f_code is caught.tb_frame.f_code:
            traced.tb_next = None
        traced = traced.tb_next


def place_of(error: BaseException) -> Hashable:
    """Return what is equal for two exceptions that have one stack trace; it reads no source file."""
    found: list[Hashable] = []
    inner: BaseException | None = error
    seen = set[int]()
    try:
        while inner is not None and id(inner) not in seen:
            if isinstance(inner, BaseExceptionGroup):
                return object()  # a tree of them: like no other
            seen.add(id(inner))
            if inner is not error:  # the text of the outer one is the reason, and no part of the stack
                found.append((type(inner), reason_of(inner), tuple(getattr(inner, "__notes__", ()))))
            found.append(_frames_of(inner))
            inner = inner.__cause__ or (None if inner.__suppress_context__ else inner.__context__)
        hash(place := tuple(found))
    except Exception:  # an exception of user code may be anything
        return object()
    return place


def _frames_of(error: BaseException) -> Hashable:
    frames = deque[Hashable](maxlen=MAX_FRAMES)
    traced = error.__traceback__
    while traced is not None:
        code = traced.tb_frame.f_code
        frames.append((code.co_filename, code.co_qualname, traced.tb_lineno))
        traced = traced.tb_next
    return tuple(frames)


def stack_of(error: BaseException | None) -> str:
    """Return the stack trace of an exception and of those behind it; "" for None.

    Its own text is left out, as the reason has it: so tuples that fail at one place have one stack.

    >>> def check(word): raise ValueError(word)
    >>> try:
    ...     check("a")
    ... except ValueError as error:
    ...     "in check" in stack_of(error), "ValueError: a" in stack_of(error), stack_of(None)
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
