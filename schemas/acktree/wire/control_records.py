"""The control records that ackers, workers and spouts send one another, as values.

Invariant: they hold the content of the wire and nothing else; ``codec.py`` turns them into bytes and back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from acktree.wire.ids import IdArray

ID = np.dtype("<u8")
ENTRY = np.dtype([("root", "<u8"), ("value", "<u8")])
EntryArray = NDArray[np.void]

SURE_REPLAY_SPANS = 200
"""So many spans of done offsets always fit into the metadata of a commit."""
MAX_REPLAY_SPANS = 700
"""The most that a command has, if they are near each other."""
REPLAY_BYTES = 1_400
"""What more spans than always fit may take of it: half, so that what else is pending has room."""


BACK_OFF, NEVER = -2, -1
"""When a record is emitted again, if not after a delay in ms: after its spout's back-off; never."""
MAX_RETRY_MS = 10**10
"""The longest delay on the wire, that of the longest retention of control records."""


class Cause(IntEnum):
    """The cause of a root's failure; the first two numbers are the Avro enum's, the third is never sent."""

    FAILED = 0
    TIMED_OUT = 1
    REJECTED = 2


class FailedTuple(NamedTuple):
    """The tuple whose fail ended a tree: its coordinates, and the stack trace, "" if none was kept."""

    topic: str
    partition: int
    offset: int
    stack: str = ""


def stack_of(failed: FailedTuple | None) -> str:
    """Return the stack trace of a failed tuple, "" where there is none."""
    return "" if failed is None else failed.stack


class Fail(NamedTuple):
    """A failed root; ``retry_after_ms`` is a delay, BACK_OFF or NEVER."""

    root: int
    reason: str
    retry_after_ms: int = BACK_OFF
    failed_tuple: FailedTuple | None = None


class Failure(NamedTuple):
    """A root that failed, FAILED or TIMED_OUT; ``retry_after_ms`` is a delay, BACK_OFF or NEVER."""

    root: int
    cause: Cause
    task: str
    reason: str
    retry_after_ms: int = BACK_OFF
    failed_tuple: FailedTuple | None = None


AnyFail = TypeVar("AnyFail", Fail, Failure)


def stronger(one: int, other: int) -> int:
    """Return which of two ``retry_after_ms`` holds for one root: NEVER before any delay, the longer delay.

    >>> stronger(BACK_OFF, 500), stronger(900, 500), stronger(NEVER, 900)
    (500, 900, -1)
    """
    return NEVER if NEVER in (one, other) else max(one, other)


def split_by_stack(fails: Iterable[AnyFail], limit: int) -> list[list[AnyFail]]:
    """Return fails in lists of at most ``limit``, each with one stack trace, as a record can hold them."""
    by_stack: dict[str, list[AnyFail]] = {}
    for fail in fails:
        by_stack.setdefault(stack_of(fail.failed_tuple), []).append(fail)
    return [same[at : at + limit] for same in by_stack.values() for at in range(0, len(same), limit)]


def no_ids() -> IdArray:
    return np.empty(0, ID)


def no_entries() -> EntryArray:
    return np.empty(0, ENTRY)


@dataclass(frozen=True, slots=True, eq=False)
class AckInit:
    """Roots just emitted by one spout task; ``inits`` is an (n,) array of ENTRY."""

    spout_task: int
    version: int
    inits: EntryArray


@dataclass(frozen=True, slots=True, eq=False)
class Ack:
    """The updates of one task for roots of one version; ``acks`` (n,) of ENTRY, ``resets`` (m,) of ID.

    One record holds one stack trace, see ``split_by_stack``.
    """

    task: str
    version: int
    acks: EntryArray = field(default_factory=no_entries)
    fails: Sequence[Fail] = ()
    resets: IdArray = field(default_factory=no_ids)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Finished roots that one acker reports to one spout task; ``acked`` (n,) of ID."""

    acker: int
    acked: IdArray = field(default_factory=no_ids)
    failed: Sequence[Failure] = ()


class Span(NamedTuple):
    """Offsets [first, next)."""

    first: int
    next: int


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """Offsets of a slot that hold no record, reported to the spout's ledger by the task that read past them.

    ``run`` is that of the emission that was read: the offsets of a truncated log are assigned again.
    """

    slot: int
    run: int
    spans: Sequence[Span]
    is_lost: bool = False
    """Whether they held one that retention has removed, or that is damaged."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayCommand:
    """Offsets of a slot to emit again; spans in order, not adjacent, as many as ``command_end`` allows."""

    slot: int
    spans: Sequence[Span]


def command_end(spans: Sequence[Span], start: int = 0) -> int:
    """Return how far one command may take spans in order, from ``start`` on.

    >>> command_end([Span(2 * n, 2 * n + 1) for n in range(900)])
    700
    >>> command_end([Span(n << 20, (n << 20) + 1) for n in range(900)])
    350
    """
    at, taken = start, 0
    while at < min(len(spans), start + MAX_REPLAY_SPANS):
        behind = spans[at].first - spans[at - 1].next if at > start else 0
        taken += _varint_bytes(behind) + _varint_bytes(spans[at].next - spans[at].first)
        if at >= start + SURE_REPLAY_SPANS and taken > REPLAY_BYTES:
            break
        at += 1
    return at


def _varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))
