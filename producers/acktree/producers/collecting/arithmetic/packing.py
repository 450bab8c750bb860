"""Packing of acks, fails, resets and inits into few control records, one per acker partition and flush.

Invariant: what is added between two flushes is sent together: the entries of one root are XORed into one
entry, so no part of an input tuple's ack travels alone. An init is never XORed into an ack. Pure: the sender
is a callable ``(topic, partition, value)``; roots of a version with 0 ackers are dropped.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.core.topology.registry import History, Published
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import (
    BACK_OFF,
    ENTRY,
    Ack,
    AckInit,
    EntryArray,
    Fail,
    FailedTuple,
    split_by_stack,
    stronger,
)
from acktree.wire.ids import IdArray, acker_partition, origins_of

Send = Callable[[str, int, bytes], None]

MAX_ENTRIES = 32_768
"""Limit of one control record: half a megabyte, below the broker's default limit with fails and resets."""
MIN_COMPILED_ENTRIES = 4_096
"""From this many entries on, the compiled fold is worth loading."""
MAX_FAILS = 128
MAX_RESETS = 8_192
MAX_REASON_BYTES = 2_000
MAX_STACK_BYTES = 4_096
"""A stack trace is cut to its end, where it was raised."""
MAX_STACKS = 16
"""So many different stack traces go with the fails of one flush; other fails go without."""


def fold_entries(roots: IdArray, values: IdArray) -> EntryArray:
    """Return one entry per distinct root, its value the XOR of that root's values; in no particular order.

    Neighbouring entries of one root are folded first, which is cheap: the tuples of one record come together.

    >>> fold_entries(np.array([7, 5, 7], "u8"), np.array([1, 2, 4], "u8")).tolist()
    [(5, 2), (7, 5)]
    """
    roots, values = _fold_neighbours(roots, values)
    if len(roots) >= MIN_COMPILED_ENTRIES and (fold := compiled_fold()) is not None:
        return fold(np.ascontiguousarray(roots), np.ascontiguousarray(values))
    order = np.argsort(roots, kind="stable")
    ordered, sums = _fold_neighbours(roots[order], values[order])
    folded = np.empty(len(ordered), ENTRY)
    folded["root"], folded["value"] = ordered, sums
    return folded


@cache
def compiled_fold() -> Callable[[IdArray, IdArray], EntryArray] | None:
    try:
        from acktree.producers.collecting.arithmetic.fold_loop import fold
    except (ImportError, RuntimeError):  # no numba, or no cache folder for it
        return None
    return fold


def _fold_neighbours(roots: IdArray, values: IdArray) -> tuple[IdArray, IdArray]:
    """Return the roots and the XOR of their values, one for each run of equal roots."""
    first = np.empty(len(roots), bool)
    first[:1] = True
    np.not_equal(roots[1:], roots[:-1], out=first[1:])
    if first.all():
        return roots, values
    starts = np.flatnonzero(first)
    return roots[starts], np.bitwise_xor.reduceat(values, starts)


def split_by_partition(entries: EntryArray, ackers: int) -> Iterator[tuple[int, EntryArray]]:
    """Yield each acker partition that owns some of the roots, with the entries of these."""
    if ackers == 1 and len(entries):
        yield 0, entries
        return
    partitions = (entries["root"] % np.uint64(ackers)).astype(np.uint16)
    order = np.argsort(partitions, kind="stable")
    bounds = np.flatnonzero(np.diff(partitions[order])) + 1
    for indexes in np.split(order, bounds):
        if len(indexes):
            yield int(partitions[indexes[0]]), entries[indexes]


class _Entries:
    """Roots and values in order of arrival, in two flat buffers."""

    __slots__ = ("roots", "values")

    def __init__(self) -> None:
        self.roots = array("Q")
        self.values = array("Q")

    def add(self, root: int, value: int) -> None:
        self.roots.append(root)
        self.values.append(value)

    def add_many(self, roots: IdArray, values: IdArray) -> None:
        assert len(roots) == len(values), (len(roots), len(values))
        self.roots.frombytes(roots.astype(np.uint64, copy=False).tobytes())
        self.values.frombytes(values.astype(np.uint64, copy=False).tobytes())

    def packed(self, ackers: int) -> Iterator[tuple[int, EntryArray]]:
        """Yield (acker partition, folded entries)."""
        yield from split_by_partition(self.folded(), ackers)

    def folded(self) -> EntryArray:
        return fold_entries(np.frombuffer(self.roots, np.uint64), np.frombuffer(self.values, np.uint64))


def _chunks(entries: EntryArray) -> Iterator[EntryArray]:
    for start in range(0, len(entries), MAX_ENTRIES):
        yield entries[start : start + MAX_ENTRIES]


def init_records(published: Published, spout_task: int, entries: EntryArray) -> Iterator[tuple[int, bytes]]:
    """Yield (acker partition, record) for roots of one spout task and version, one entry per root."""
    if not published.ackers:
        return
    for partition, inits in split_by_partition(entries, published.ackers):
        for chunk in _chunks(inits):
            yield partition, encode_ack_init(AckInit(spout_task, published.version, chunk))


def inits_of_tasks(published: Published, entries: EntryArray) -> Iterator[tuple[int, bytes]]:
    """Yield (acker partition, record) for roots of one version and of any of its spout tasks."""
    if not len(entries):
        return
    tasks = _spout_tasks(published)[origins_of(entries["root"])[0]]
    if (tasks == tasks[0]).all():
        yield from init_records(published, int(tasks[0]), entries)
        return
    for task in np.unique(tasks).tolist():
        yield from init_records(published, task, entries[tasks == task])


def _spout_tasks(published: Published) -> NDArray[Any]:
    """Return the spout task of each slot, -1 for a slot without one."""
    task_of: NDArray[Any] = np.full(1 + max((slot.slot for slot in published.slots), default=0), -1)
    for slot in published.slots:
        if slot.spout in published.spout_tasks:
            task_of[slot.slot] = published.task_of(slot)
    return task_of


class InitPacker:
    """Collects the inits of one spout task; a root's whole value must be added before one flush."""

    def __init__(self, history: History, spout_task: int, send: Send) -> None:
        self._history = history
        self._spout_task = spout_task
        self._send = send
        self._inits: dict[int, _Entries] = {}

    def __len__(self) -> int:
        """Return how many entries wait for the flush."""
        return sum(len(entries.roots) for entries in self._inits.values())

    def add(self, version: int, root: int, value: int) -> None:
        """Add the init of a root born in ``version``; the value 0 means that nothing was emitted."""
        self._pending_of(version).add(root, value)

    def add_many(self, version: int, roots: IdArray, values: IdArray) -> None:
        """Add the inits of many roots born in ``version``; both arrays (n,) of uint64."""
        self._pending_of(version).add_many(roots, values)

    def _pending_of(self, version: int) -> _Entries:
        return self._inits.get(version) or self._inits.setdefault(version, _Entries())

    def flush(self) -> None:
        """Send what was added since the last flush.

        Raises:
            UnknownVersion: something was added for a version that this process does not know.
        """
        waiting, self._inits = self._inits, {}
        for version, entries in waiting.items():
            published = self._history.at(version)
            for partition, record in init_records(published, self._spout_task, entries.folded()):
                self._send(published.ack_init_topic, partition, record)


class _Updates:
    """One task's acker updates about the roots of one version."""

    __slots__ = ("acks", "fails", "resets")

    def __init__(self) -> None:
        self.acks = _Entries()
        self.fails: dict[int, Fail] = {}
        self.resets: set[int] = set()


class AckPacker:
    """Collects the acks, fails and resets of one task; a tuple's whole ack must be added before one flush."""

    def __init__(
        self, history: History, task_name: str, send: Send, send_at_once: Send | None = None
    ) -> None:
        """``send_at_once`` is for what waits neither for a flush nor for what ``send`` may wait for."""
        self._history = history
        self._task_name = task_name
        self._send = send
        self._send_at_once = send_at_once or send
        self._updates: dict[int, _Updates] = {}
        self._stacks: set[str] = set()

    def __len__(self) -> int:
        """Return how many entries wait for the flush."""
        return sum(len(u.acks.roots) + len(u.fails) + len(u.resets) for u in self._updates.values())

    def ack(self, version: int, root: int, value: int) -> None:
        """Add a value to fold into a root born in ``version``."""
        self._pending_of(version).acks.add(root, value)

    def ack_many(self, version: int, roots: IdArray, values: IdArray) -> None:
        """Add values of many roots, in any order and with repetitions; both arrays (n,) of uint64."""
        self._pending_of(version).acks.add_many(roots, values)

    def fail(
        self,
        version: int,
        root: int,
        reason: str,
        retry_after_ms: int = BACK_OFF,
        failed_tuple: FailedTuple | None = None,
    ) -> None:
        """Fail a root: ``retry_after_ms`` is a delay, BACK_OFF or NEVER.

        Of several fails the first with the strongest ``retry_after_ms`` counts. Its reason is cut to
        MAX_REASON_BYTES of UTF-8, its stack trace to MAX_STACK_BYTES.
        """
        fails = self._pending_of(version).fails
        known = fails.get(root)
        if known is None or stronger(known.retry_after_ms, retry_after_ms) != known.retry_after_ms:
            text = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")
            fails[root] = Fail(root, text, retry_after_ms, self._with_stack(failed_tuple))

    def _with_stack(self, failed: FailedTuple | None) -> FailedTuple | None:
        """Return a failed tuple with its stack trace cut, or without it beyond MAX_STACKS."""
        if failed is None or not failed.stack:
            return failed
        stack = failed.stack.encode("utf-8", "replace")[-MAX_STACK_BYTES:].decode("utf-8", "ignore")
        if stack not in self._stacks and len(self._stacks) >= MAX_STACKS:
            return failed._replace(stack="")
        self._stacks.add(stack)
        return failed._replace(stack=stack)

    def reset(self, version: int, root: int) -> None:
        """Ask the acker to restart the root's timeout."""
        self._pending_of(version).resets.add(root)

    def reset_at_once(self, version: int, root: int) -> None:
        """Ask the acker to restart the root's timeout, without waiting for the flush.

        Raises:
            UnknownVersion: this process does not know the version.
        """
        published = self._history.at(version)
        if published.ackers:
            reset = Ack(self._task_name, version, np.empty(0, ENTRY), (), np.array([root], np.uint64))
            partition = acker_partition(root, published.ackers)
            self._send_at_once(published.ack_topic, partition, encode_ack(reset))

    def _pending_of(self, version: int) -> _Updates:
        return self._updates.get(version) or self._updates.setdefault(version, _Updates())

    def flush(self) -> None:
        """Send what was added since the last flush; no ack is in an earlier record than a fail.

        Raises:
            UnknownVersion: something was added for a version that this process does not know.
        """
        # Life of an ack, step 6.
        waiting, self._updates = self._updates, {}
        self._stacks.clear()
        for version, updates in waiting.items():
            published = self._history.at(version)
            if not published.ackers:
                continue
            for partition, record in _ack_records(self._task_name, version, updates, published.ackers):
                self._send(published.ack_topic, partition, encode_ack(record))


def _ack_records(task: str, version: int, updates: _Updates, ackers: int) -> Iterator[tuple[int, Ack]]:
    """Yield (acker partition, record): one per partition unless a limit splits it."""
    fails: dict[int, list[Fail]] = {}
    for root, fail in updates.fails.items():
        fails.setdefault(acker_partition(root, ackers), []).append(fail)
    resets: dict[int, list[int]] = {}
    for root in updates.resets:
        resets.setdefault(acker_partition(root, ackers), []).append(root)
    acks = dict(updates.acks.packed(ackers))
    no_acks = np.empty(0, ENTRY)
    for partition in sorted({*fails, *acks, *resets}):
        for parts in _limited(
            fails.get(partition, []), acks.get(partition, no_acks), resets.get(partition, [])
        ):
            yield partition, Ack(task, version, parts[1], parts[0], np.array(parts[2], np.uint64))


def _limited(
    fails: Sequence[Fail], acks: EntryArray, resets: Sequence[int]
) -> Iterator[tuple[Sequence[Fail], EntryArray, Sequence[int]]]:
    """Split the updates of one partition into records within the limits, fails first."""
    *earlier, fails = split_by_stack(fails, MAX_FAILS) or [[]]
    for part in earlier:
        yield part, acks[:0], ()
    while len(acks) > MAX_ENTRIES or len(resets) > MAX_RESETS:
        yield fails, acks[:MAX_ENTRIES], resets[:MAX_RESETS]
        fails, acks, resets = (), acks[MAX_ENTRIES:], resets[MAX_RESETS:]
    if len(fails) or len(acks) or len(resets):
        yield fails, acks, resets
