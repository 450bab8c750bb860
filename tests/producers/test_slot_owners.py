"""Who may hold a slot, and what of it stays in flight, from what a state topic says."""

from collections.abc import Sequence
from typing import Any

import pytest

from acktree.core.topology.registry import History, Published
from acktree.producers.spouts.driver.owners import Owners, TakenOver
from acktree.producers.spouts.driver.spout_states import SpoutStates
from acktree.wire.state_records import (
    SEVERAL_TASKS,
    SlotKey,
    SlotState,
    SpoutState,
    StateStart,
    TaskPosition,
)

TASKS: dict[int, tuple[int, ...]] = {1: (0,), 2: (0, 1), 3: (0, 1), 4: (0, 1, 2)}
"""The tasks of each version of the topology; versions 2 and 3 deal the partitions alike."""
KEYS = [SlotKey("lines", partition, "id") for partition in range(6)]


def history(latest: int) -> History:
    versions = {}
    for version in range(1, latest + 1):
        slots = [
            {"slot": n, "spout": "in", "topic": "lines", "topic_id": "id", "partition": n} for n in range(6)
        ]
        spout = {"topics": ("lines",), "emits": ("words",), "tasks": len(TASKS[version])}
        content: dict[str, Any] = {"name": "t", "ackers": 1, "spouts": {"in": spout}}
        content |= {"bolts": {"count": {"reads": ("words",)}}}
        versions[version] = Published.model_validate(
            {**content, "version": version, "spout_tasks": {"in": TASKS[version]}, "slots": slots}
        )
    return History("t", versions)


def owners(task: int | None, latest: int) -> Owners:
    return Owners(history(latest), "in", task)


def state(term: int, **positions: int) -> SpoutState:
    return SpoutState(
        term, "host/1", tasks=[TaskPosition(int(name[1:]), at) for name, at in positions.items()]
    )


def keeps(task: int | None, read: SpoutStates, of: int, term: int) -> bool:
    """Return whether a start keeps in flight what a task had in flight when an owner wrote its slot."""
    return owners(task, 4).keeps(SlotState(0, 9, 1, b"", task=of, term=term), read.readers)


STARTS = {None: StateStart(1, 1), 0: StateStart(2, 1), 1: StateStart(3, 2), 2: StateStart(4, 4)}


@pytest.mark.parametrize(
    ("task", "latest", "ended"),
    [
        (None, 4, ["t.in.0", "t.in.1", "t.in.2"]),
        (0, 2, ["t.in", "t.in.2"]),
        (0, 3, ["t.in", "t.in.2"]),
        (1, 4, ["t.in", "t.in.0"]),
        (2, 4, ["t.in", "t.in.0", "t.in.1"]),
    ],
)
def test_a_start_ends_every_process_that_may_hold_its_slots(
    task: int | None, latest: int, ended: list[str]
) -> None:
    found = owners(task, latest).to_end(SpoutStates(task, starts=dict(STARTS)), STARTS[None])
    assert found == ended


def test_a_task_gives_way_to_a_driver_that_has_started_since_its_process_began() -> None:
    with pytest.raises(TakenOver):
        owners(0, 2).to_end(SpoutStates(0, starts=dict(STARTS)), None)
    with pytest.raises(TakenOver):
        owners(0, 2).to_end(SpoutStates(0, starts=dict(STARTS)), StateStart(9, 1))


@pytest.mark.parametrize(
    ("task", "latest", "partitions"),
    [(None, 3, range(6)), (0, 1, range(6)), (0, 3, range(0, 6, 2)), (1, 3, range(1, 6, 2)), (2, 4, (2, 5))],
)
def test_partitions_are_dealt_to_the_tasks_of_the_newest_version(
    task: int | None, latest: int, partitions: Sequence[int]
) -> None:
    assert [key.partition for key in KEYS if owners(task, latest).has(key)] == list(partitions)


def test_a_position_is_that_of_the_last_reader() -> None:
    read = SpoutStates(1, spout=state(3, t0=50, t1=6), tasks={0: state(5, t0=70, t2=9), 1: state(2, t1=4)})
    assert dict(read.readers) == {
        0: (5, TaskPosition(0, 70)),
        1: (3, TaskPosition(1, 6)),
        2: (5, TaskPosition(2, 9)),
    }


def test_a_task_keeps_what_its_last_process_had_in_flight() -> None:
    read = SpoutStates(1, spout=state(3, t0=50, t1=1), tasks={0: state(5, t0=70), 1: state(4, t1=8)})
    assert keeps(1, read, of=1, term=4)


def test_a_task_keeps_what_a_driver_had_in_flight_for_it_alone() -> None:
    read = SpoutStates(0, spout=state(8, t0=90, t1=3), tasks={0: state(7, t0=10)})
    assert keeps(0, read, of=0, term=8)
    assert not keeps(0, read, of=1, term=8)
    assert not keeps(0, read, of=SEVERAL_TASKS, term=8)


def test_records_of_another_task_are_emitted_again() -> None:
    read = SpoutStates(1, tasks={0: state(2, t0=30)})
    assert not keeps(1, read, of=0, term=2)


def test_records_whose_results_the_task_has_passed_without_their_slot_are_emitted_again() -> None:
    """It had the slot in term 2; in term 4 another task should have had it, and never began."""
    read = SpoutStates(0, tasks={0: state(4, t0=30)})
    assert not keeps(0, read, of=0, term=2)
    assert not keeps(None, read, of=0, term=2)


def test_records_whose_results_the_first_task_has_passed_are_emitted_again() -> None:
    """Task 2 was removed, so task 0 has read its topic; nobody had the slot before task 2 came back."""
    read = SpoutStates(2, tasks={0: state(4, t0=30, t2=9), 2: state(3, t2=5)})
    assert not keeps(2, read, of=2, term=3)


def test_a_driver_keeps_all_in_flight_that_nobody_has_passed() -> None:
    read = SpoutStates(None, spout=state(2, t0=5, t2=4), tasks={0: state(3, t0=70), 1: state(4, t1=8)})
    assert keeps(None, read, of=0, term=3)
    assert keeps(None, read, of=1, term=4)
    assert keeps(None, read, of=2, term=2)
    assert not keeps(None, read, of=0, term=2)


def test_a_driver_keeps_what_has_results_on_several_topics_if_it_was_the_last_to_read_each() -> None:
    assert keeps(None, SpoutStates(spout=state(2, t0=5, t1=4)), of=SEVERAL_TASKS, term=2)
    passed = SpoutStates(spout=state(2, t0=5, t1=4), tasks={0: state(3, t0=7)})
    assert not keeps(None, passed, of=SEVERAL_TASKS, term=2)
