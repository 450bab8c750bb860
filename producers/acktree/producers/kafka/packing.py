"""Packing of acks, fails, resets and inits into few control records, one per acker partition and flush.

Invariant: what is handed in between two flushes leaves together: the entries of one root are XORed into one
entry, so no part of an input tuple's ack travels alone. An init is never XORed into an ack. Pure: the sender
is a callable ``(topic, partition, value)``; roots of a version with 0 ackers are dropped.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from acktree.schemas.codec import ENTRY, Ack, AckInit, EntryArray, Fail, encode_ack, encode_ack_init
from acktree.schemas.ids import IdArray, acker_partition
from acktree.schemas.registry import History, Published

Send = Callable[[str, int, bytes], None]

MAX_ENTRIES = 32_768
"""Entries of one control record: half a megabyte, under the broker's default limit with fails and resets."""
MANY_ENTRIES = 4_096
"""From here on the compiled fold is worth its loading."""
MAX_FAILS = 128
MAX_RESETS = 8_192
MAX_REASON_BYTES = 2_000


def fold_entries(roots: IdArray, values: IdArray) -> EntryArray:
    """Return one entry per distinct root, its value the XOR of that root's values; in no certain order.

    Neighbours of one root are folded first: the tuples of one record come together, and the rest costs most.

    >>> fold_entries(np.array([7, 5, 7], "u8"), np.array([1, 2, 4], "u8")).tolist()
    [(5, 2), (7, 5)]
    """
    roots, values = _fold_neighbours(roots, values)
    if len(roots) >= MANY_ENTRIES and (fold := compiled_fold()) is not None:
        return fold(np.ascontiguousarray(roots), np.ascontiguousarray(values))
    order = np.argsort(roots, kind="stable")
    ordered, sums = _fold_neighbours(roots[order], values[order])
    folded = np.empty(len(ordered), ENTRY)
    folded["root"], folded["value"] = ordered, sums
    return folded


@cache
def compiled_fold() -> Callable[[IdArray, IdArray], EntryArray] | None:
    try:
        from acktree.producers.native.fold_loop import fold
    except (ImportError, RuntimeError):  # no numba, or no folder for what it compiles
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
    """Yield each acker partition that owns some of the roots, with their entries."""
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


class InitPacker:
    """Collects the inits of one spout task; a root's whole value must come in before one flush."""

    def __init__(self, history: History, spout_task: int, send: Send) -> None:
        self._history = history
        self._spout_task = spout_task
        self._send = send
        self._inits: dict[int, _Entries] = {}

    def __len__(self) -> int:
        """Return how many entries wait for the flush."""
        return sum(len(entries.roots) for entries in self._inits.values())

    def add(self, version: int, root: int, value: int) -> None:
        """Take one init of a root born in ``version``; the value 0 says that nothing was emitted."""
        self._of(version).add(root, value)

    def add_many(self, version: int, roots: IdArray, values: IdArray) -> None:
        """Take the inits of many roots born in ``version``; both arrays (n,) of uint64."""
        self._of(version).add_many(roots, values)

    def _of(self, version: int) -> _Entries:
        return self._inits.get(version) or self._inits.setdefault(version, _Entries())

    def flush(self) -> None:
        """Send what was taken since the last flush.

        Raises:
            UnknownVersion: a version this process has not seen was handed in.
        """
        waiting, self._inits = self._inits, {}
        for version, entries in waiting.items():
            published = self._history.at(version)
            for partition, record in init_records(published, self._spout_task, entries.folded()):
                self._send(published.ack_init_topic, partition, record)


class _Said:
    """What one task has to say about the roots of one version."""

    __slots__ = ("acks", "fails", "resets")

    def __init__(self) -> None:
        self.acks = _Entries()
        self.fails: dict[int, str] = {}
        self.resets: set[int] = set()


class AckPacker:
    """Collects the acks, fails and resets of one task; an input tuple's ack comes in before one flush."""

    def __init__(
        self, history: History, task_name: str, send: Send, send_at_once: Send | None = None
    ) -> None:
        """``send_at_once`` is for what does not wait for a flush, nor for what ``send`` may wait for."""
        self._history = history
        self._task_name = task_name
        self._send = send
        self._send_at_once = send_at_once or send
        self._said: dict[int, _Said] = {}

    def __len__(self) -> int:
        """Return how many entries wait for the flush."""
        return sum(len(s.acks.roots) + len(s.fails) + len(s.resets) for s in self._said.values())

    def ack(self, version: int, root: int, value: int) -> None:
        """Take a value to fold into a root born in ``version``."""
        self._of(version).acks.add(root, value)

    def ack_many(self, version: int, roots: IdArray, values: IdArray) -> None:
        """Take values of many roots, in any order and with repetitions; both arrays (n,) of uint64."""
        self._of(version).acks.add_many(roots, values)

    def fail(self, version: int, root: int, reason: str) -> None:
        """Mark a root as failed; its first reason stands, cut to MAX_REASON_BYTES of UTF-8."""
        text = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")
        self._of(version).fails.setdefault(root, text)

    def reset(self, version: int, root: int) -> None:
        """Ask the acker to count the root's timeout from now on."""
        self._of(version).resets.add(root)

    def reset_at_once(self, version: int, root: int) -> None:
        """Ask the acker to count the root's timeout from now on; it does not wait for the flush.

        Raises:
            UnknownVersion: a version this process has not seen was handed in.
        """
        published = self._history.at(version)
        if published.ackers:
            asked = Ack(self._task_name, version, np.empty(0, ENTRY), (), np.array([root], np.uint64))
            partition = acker_partition(root, published.ackers)
            self._send_at_once(published.ack_topic, partition, encode_ack(asked))

    def _of(self, version: int) -> _Said:
        return self._said.get(version) or self._said.setdefault(version, _Said())

    def flush(self) -> None:
        """Send what was taken since the last flush; no ack leaves in an earlier record than a fail.

        Raises:
            UnknownVersion: a version this process has not seen was handed in.
        """
        waiting, self._said = self._said, {}
        for version, said in waiting.items():
            published = self._history.at(version)
            if not published.ackers:
                continue
            for partition, record in _ack_records(self._task_name, version, said, published.ackers):
                self._send(published.ack_topic, partition, encode_ack(record))


def _ack_records(task: str, version: int, said: _Said, ackers: int) -> Iterator[tuple[int, Ack]]:
    """Yield (acker partition, record): one per partition unless a limit splits it."""
    fails: dict[int, list[Fail]] = {}
    for root, reason in said.fails.items():
        fails.setdefault(acker_partition(root, ackers), []).append(Fail(root, reason))
    resets: dict[int, list[int]] = {}
    for root in said.resets:
        resets.setdefault(acker_partition(root, ackers), []).append(root)
    acks = dict(said.acks.packed(ackers))
    nothing = np.empty(0, ENTRY)
    for partition in sorted({*fails, *acks, *resets}):
        for parts in _limited(
            fails.get(partition, []), acks.get(partition, nothing), resets.get(partition, [])
        ):
            yield partition, Ack(task, version, parts[1], parts[0], np.array(parts[2], np.uint64))


def _limited(
    fails: Sequence[Fail], acks: EntryArray, resets: Sequence[int]
) -> Iterator[tuple[Sequence[Fail], EntryArray, Sequence[int]]]:
    """Cut one partition's share into records under the limits, fails first."""
    while len(fails) > MAX_FAILS:
        yield fails[:MAX_FAILS], acks[:0], ()
        fails = fails[MAX_FAILS:]
    while len(acks) > MAX_ENTRIES or len(resets) > MAX_RESETS:
        yield fails, acks[:MAX_ENTRIES], resets[:MAX_RESETS]
        fails, acks, resets = (), acks[MAX_ENTRIES:], resets[MAX_RESETS:]
    if len(fails) or len(acks) or len(resets):
        yield fails, acks, resets
