"""Cuts what a stage has finished into transactions, each of which passes within the transaction timeout.

Invariant: all output of a record, and of those that share a tuple with it, is in one transaction, with the
record's root; the transactions are in the order of their first output. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from acktree.producers.collecting.held_output import size_of
from acktree.producers.columns import Pairs
from acktree.producers.spouts.state_topic import OutputRecord
from acktree.producers.stages.root_packer import FinishedRoots
from acktree.wire.header import HEADER, decode_header


class Transaction(NamedTuple):
    """What is written together: roots that are finished, their output, and its size in bytes."""

    finished: Sequence[FinishedRoots]
    output: Sequence[OutputRecord]
    size: int
    tries: int = 0
    """How often it has not passed although no part of it could go alone."""


def cut(transaction: Transaction, limit_bytes: int) -> list[Transaction]:
    """Return transactions of up to so many bytes each, or more where all of it belongs together.

    Roots without output are in the first one, which has output only as far as the limit allows it.
    """
    groups = _Groups(transaction.output)
    sizes, part_of = [0], dict[int, int]()
    for group, size in groups.sizes().items():
        if sizes[-1] + size > limit_bytes:
            sizes.append(0)
        sizes[-1] += size
        part_of[group] = len(sizes) - 1
    output: list[list[OutputRecord]] = [[] for _ in sizes]
    for record, group in zip(transaction.output, groups.of_output(), strict=True):
        output[part_of[group]].append(record)
    part_of_root = {root: part_of[group] for root, group in groups.of_roots().items()}
    cuts = (
        Transaction(_of_part(transaction.finished, part_of_root, part), output[part], size)
        for part, size in enumerate(sizes)
    )
    return [each for each in cuts if each.output or each.finished]


def _of_part(
    finished: Sequence[FinishedRoots], part_of_root: Mapping[int, int], part: int
) -> list[FinishedRoots]:
    found = []
    for version, entries, failed in finished:
        parts = np.array([part_of_root.get(root, 0) for root in entries["root"].tolist()], np.int64)
        fails = [fail for fail in failed if part_of_root.get(fail.root, 0) == part]
        if len(own := entries[parts == part]) or fails:
            found.append(FinishedRoots(version, own, fails))
    return found


class _Groups:
    """Output that belongs together: that of one root, or of several that share a tuple.

    A group is named by the number of its first output.
    """

    def __init__(self, output: Sequence[OutputRecord]) -> None:
        self._output = output
        self._above = list(range(len(output)))
        """Of each output an earlier one of its group, or itself if it is the first."""
        self._first_of_root: dict[int, int] = {}
        for number, record in enumerate(output):
            for root in roots_of(record[3]):
                first = self._first_of_root.setdefault(root, number)
                self._join(self._group_of(first), self._group_of(number))

    def _join(self, one: int, other: int) -> None:
        self._above[max(one, other)] = min(one, other)

    def _group_of(self, number: int) -> int:
        while (above := self._above[number]) != number:
            self._above[number] = self._above[above]
            number = above
        return number

    def of_output(self) -> list[int]:
        """Return the group of each output."""
        return [self._group_of(number) for number in range(len(self._output))]

    def of_roots(self) -> dict[int, int]:
        """Return the group of each root that has output."""
        return {root: self._group_of(number) for root, number in self._first_of_root.items()}

    def sizes(self) -> dict[int, int]:
        """Return the size of each group in bytes, in the order of their first output."""
        sizes: dict[int, int] = {}
        for record, group in zip(self._output, self.of_output(), strict=True):
            sizes[group] = sizes.get(group, 0) + size_of(record[1], record[2])
        return sizes


def roots_of(headers: Pairs | None) -> list[int]:
    """Return the roots of a tuple, none if it is unanchored."""
    return [
        anchor.root
        for name, value in headers or ()
        if name == HEADER and isinstance(value, bytes)
        for anchor in decode_header(value).anchors
    ]
