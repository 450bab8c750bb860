"""Cutting what a stage has finished into transactions: nothing that belongs together is torn apart."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acktree.producers.collecting.held_output import size_of
from acktree.producers.stages.root_packer import FinishedRoots
from acktree.producers.stages.transactions import Transaction, cut, roots_of
from acktree.wire.control_records import ENTRY, Fail
from acktree.wire.header import HEADER, Anchor, encode_header

ROOTS = 12
outputs = st.lists(st.tuples(st.sets(st.integers(1, ROOTS), max_size=3), st.integers(0, 5_000)), max_size=30)
"""The roots and the size of each."""


def transaction_of(output: list[tuple[set[int], int]]) -> Transaction:
    """Return a transaction with this output, in which the last root has failed."""
    records = [
        (
            "words",
            bytes(size),
            None,
            [(HEADER, encode_header(1, [Anchor(1, root, number) for root in sorted(roots)]))],
            0,
            -1,
        )
        for number, (roots, size) in enumerate(output)
    ]
    entries = np.array([(root, root) for root in range(1, ROOTS)], ENTRY)
    finished = [FinishedRoots(1, entries, [Fail(ROOTS, "failed")])]
    return Transaction(finished, records, sum(size_of(each[1], None) for each in records))


def roots_in(part: Transaction) -> list[int]:
    return [
        root
        for each in part.finished
        for root in [*each.entries["root"].tolist(), *(fail.root for fail in each.failed)]
    ]


@given(outputs, st.integers(1, 20_000))
def test_every_output_is_in_the_transaction_of_its_roots(output, limit):
    parts = cut(transaction_of(output), limit)
    assert sorted(root for part in parts for root in roots_in(part)) == [*range(1, ROOTS + 1)]
    written = [record for part in parts for record in part.output]
    assert len(written) == len(output)
    for part in parts:
        for record in part.output:
            assert set(roots_of(record[3])) <= set(roots_in(part))


@given(outputs, st.integers(1, 20_000))
def test_a_transaction_is_larger_than_the_limit_only_if_it_cannot_be_cut(output, limit):
    for part in cut(transaction_of(output), limit):
        assert part.size == sum(size_of(record[1], None) for record in part.output)
        if part.size > limit:
            assert len(cut(part, limit)) == 1
