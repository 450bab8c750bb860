"""Which roots are emissions of a record inside a block."""

from typing import cast

import numpy as np
import pytest

from acktree.console.view.cluster import Cluster
from acktree.console.view.search import Search, TraceTarget, drop_other_blocks, may_be_emissions
from acktree.schemas.ids import generation_of, root_id
from acktree.schemas.registry import Slot

SLOT = Slot(slot=3, spout="lines", topic="lines", topic_id="id", partition=0)


def root(offset: int, run: int = 1, attempt: int = 0, slot: int = 3) -> int:
    return root_id(slot, generation_of(run, attempt), offset)


@pytest.mark.parametrize(
    ("block", "found"), [(1, [15]), (5, [11, 15]), (10, [6, 11, 15]), (100, [0, 6, 11, 15])]
)
def test_a_root_covers_the_offsets_of_its_block(block: int, found: list[int]) -> None:
    offsets = [0, 6, 11, 15, 16, 20]
    mine = may_be_emissions(TraceTarget(SLOT, 15, block), np.array([root(o) for o in offsets], np.uint64))
    assert [offset for offset, is_mine in zip(offsets, mine, strict=True) if is_mine] == found
    assert not may_be_emissions(
        TraceTarget(SLOT, 15, block), np.array([root(15, slot=2), root(15, slot=4)], np.uint64)
    ).any()


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        ([root(10), root(17)], [root(17)]),
        ([root(10), root(10, attempt=1), root(17), root(17, attempt=1)], [root(17), root(17, attempt=1)]),
        ([root(10), root(17), root(12, run=2), root(17, run=2, attempt=1)],
         [root(17), root(12, run=2), root(17, run=2, attempt=1)]),
        ([root(10, attempt=1), root(17, attempt=2)], [root(17, attempt=2)]),
        ([], []),
    ],
)  # fmt: skip
def test_a_record_belongs_to_the_last_block_of_its_run_that_starts_before_it(
    seen: list[int], left: list[int]
) -> None:
    search = Search(cast(Cluster, None), TraceTarget(SLOT, 18, 10), 0.0, None)
    for each in seen:
        search.findings_of(each)
    drop_other_blocks(search)
    assert list(search.found) == left
