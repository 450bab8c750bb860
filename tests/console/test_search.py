"""Which roots are emissions of a record inside a block."""

from typing import cast

import numpy as np
import pytest

from acktree.console.view.cluster import Cluster
from acktree.console.view.records.search import (
    Search,
    TraceTarget,
    drop_other_blocks,
    find_results,
    may_be_emissions,
)
from acktree.core.topology.registry import History, Published, Slot
from acktree.wire.ids import generation_of, root_id

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
        ([root(10), root(10, attempt=1), root(17), root(17, attempt=1), root(18, attempt=1)],
         [root(17), root(18, attempt=1)]),
        ([root(10), root(17), root(12, run=2), root(18, run=2, attempt=1)],
         [root(17), root(12, run=2), root(18, run=2, attempt=1)]),
        ([root(10, attempt=1), root(17, attempt=2)], []),
        ([], []),
    ],
)  # fmt: skip
def test_a_record_belongs_to_the_last_block_of_a_run_before_it_and_is_replayed_alone(
    seen: list[int], left: list[int]
) -> None:
    search = Search(cast(Cluster, None), 0.0, target=TraceTarget(SLOT, 18, 10))
    for each in seen:
        search.findings_of(each)
    drop_other_blocks(search)
    assert list(search.found) == left


class ResultTopics:
    """A cluster whose result topics are empty; keeps which were asked for."""

    def __init__(self, *versions: Published) -> None:
        self.history = History("t", {version.version: version for version in versions})
        self.asked: list[str] = []

    def partitions(self, topics: list[str]) -> list[tuple[str, int]]:
        self.asked += topics
        return []

    def starts(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {}

    ends = starts

    def scan(self, spans: object, deadline_s: float, whole: bool = False) -> list[object]:
        return []


def version_of(number: int, tasks: tuple[int, ...], spout: str = "lines") -> Published:
    slots = [Slot(slot=n, spout="lines", topic="lines", topic_id="id", partition=n) for n in range(4)]
    slots[3] = SLOT
    spouts = {spout: {"topics": ["lines"], "emits": ["words"], "tasks": len(tasks)}}
    bolts = {"count": {"reads": ["words"]}}
    made = {"name": "t", "ackers": 1, "spouts": spouts, "bolts": bolts, "version": number, "slots": slots}
    return Published.model_validate({**made, "spout_tasks": {spout: tasks}})


@pytest.mark.parametrize(
    ("versions", "named", "read"),
    [
        ([version_of(1, (0, 1, 2))], [], ["t.spout-0"]),
        ([version_of(1, (0, 1, 2, 5))], [], ["t.spout-5"]),
        ([version_of(1, (0, 1, 2, 5)), version_of(2, (0, 1))], [], ["t.spout-1", "t.spout-5"]),
        ([version_of(1, (0, 1, 2, 5)), version_of(2, (9,), spout="other")], [], ["t.spout-5"]),
        ([version_of(1, (0, 1, 2))], [7], ["t.spout-0", "t.spout-7"]),
    ],
    ids=["of three", "of four", "of an older version", "of a spout that is gone", "which an init names"],
)
def test_only_results_of_tasks_that_may_have_received_them_are_read(
    versions: list[Published], named: list[int], read: list[str]
) -> None:
    cluster = ResultTopics(*versions)
    search = Search(cast(Cluster, cluster), 1e18, target=TraceTarget(SLOT, 18), spout_tasks=set(named))
    find_results(search, versions[-1])
    assert cluster.asked == read
