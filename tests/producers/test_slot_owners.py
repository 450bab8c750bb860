"""Who may hold a slot, and who had it last, from what a state topic says."""

from typing import Any

import pytest

from acktree.core.topology.registry import History, Published
from acktree.producers.spouts.driver.owners import Owners, TakenOver
from acktree.producers.spouts.driver.spout_states import SpoutStates, freest_run
from acktree.wire.state_records import SlotKey, SlotState, SpoutState, StateStart, TaskPosition

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


def state(term: int, run: int, version: int, **positions: int) -> SpoutState:
    tasks = [TaskPosition(int(name[1:]), at) for name, at in positions.items()]
    return SpoutState(term, "host/1", run, tasks=tasks, topology=version)


def states(task: int | None, partitions: range = range(6), **given: Any) -> SpoutStates:
    made = SpoutStates(task, **given)
    made.slots = {KEYS[each]: SlotState(0, 0, 1, b"") for each in partitions}
    return made


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
    found = owners(task, latest).to_end(states(task, starts=dict(STARTS)), STARTS[None])
    assert found == ended


def test_a_task_gives_way_to_a_driver_that_has_started_since_its_process_began() -> None:
    with pytest.raises(TakenOver):
        owners(0, 2).to_end(states(0, starts=dict(STARTS)), None)
    with pytest.raises(TakenOver):
        owners(0, 2).to_end(states(0, starts=dict(STARTS)), StateStart(9, 1))


def test_a_task_continues_from_its_own_state_and_keeps_all_in_flight() -> None:
    read = states(
        1,
        range(1, 6, 2),
        spout=state(3, 9, 1, t0=50),
        tasks={0: state(5, 4, 2, t0=70), 1: state(4, 7, 2, t1=8)},
    )
    assert owners(1, 3).runs(read) == [7]
    assert owners(1, 3).moved(read, 8) == set()
    assert [each for each in owners(1, 3).positions(read) if each.task == 1] == [TaskPosition(1, 8)]


def test_a_task_continues_where_a_later_driver_ended() -> None:
    read = states(0, range(6), spout=state(8, 20, 1, t0=90), tasks={0: state(7, 3, 1, t0=10)})
    assert owners(0, 1).runs(read) == [20]
    assert owners(0, 1).moved(read, 21) == set()
    assert owners(0, 1).positions(read) == [TaskPosition(0, 90)]


def test_records_of_other_tasks_are_emitted_again_under_a_run_that_is_new_to_them() -> None:
    read = states(1, range(1, 6, 2), tasks={0: state(2, 40, 1, t0=30)})
    assert owners(1, 2).runs(read) == [40]
    assert owners(1, 2).moved(read, 41) == {KEYS[1], KEYS[3], KEYS[5]}


def test_a_task_keeps_its_records_in_flight_where_other_tasks_came_and_went() -> None:
    read = states(0, range(0, 6, 2), tasks={0: state(2, 40, 1, t0=30), 1: state(9, 3, 2, t1=1)})
    assert owners(0, 2).moved(read, freest_run([40])) == set()
    assert owners(0, 2).runs(read) == [40]


def test_a_drivers_records_in_flight_are_emitted_again_if_slots_ever_changed_tasks() -> None:
    read = states(0, range(0, 6, 2), spout=state(2, 40, 2, t0=30))
    assert owners(0, 2).moved(read, 41) == set()
    read = states(1, range(1, 6, 2), spout=state(2, 40, 2, t0=30))
    assert owners(1, 2).moved(read, 41) == {KEYS[1], KEYS[3], KEYS[5]}


def test_a_driver_takes_all_tasks_over_as_they_are() -> None:
    read = states(
        None,
        range(6),
        spout=state(2, 1, 1, t0=5, t2=4),
        tasks={0: state(3, 8, 2, t0=70), 1: state(4, 3, 2, t1=8)},
    )
    assert owners(None, 4).runs(read) == [8, 3, 1]
    assert owners(None, 4).moved(read, 9) == set()
    assert sorted(owners(None, 4).positions(read)) == [
        TaskPosition(0, 70),
        TaskPosition(1, 8),
        TaskPosition(2, 4),
    ]


def test_a_slot_whose_runs_do_not_all_count_is_emitted_again() -> None:
    read = states(None, range(6), tasks={0: state(3, 200, 2, t0=70), 1: state(4, 100, 2, t1=8)})
    for key in KEYS[::2]:
        read.slots[key] = SlotState(0, 0, 195, b"")
    for key in KEYS[1::2]:
        read.slots[key] = SlotState(0, 0, 95, b"")
    assert owners(None, 2).moved(read, 98) == set(KEYS[1::2])


def test_the_first_task_of_all_has_no_run_before_it() -> None:
    assert owners(0, 2).runs(SpoutStates(0)) == []
    assert owners(1, 2).runs(SpoutStates(1, tasks={0: state(1, 5, 2)})) == []


@pytest.mark.parametrize(("runs", "free"), [([254], 255), ([255], 1), ([3, 4, 5], 6), ([250, 10], 11)])
def test_a_new_run_is_the_one_unused_for_longest(runs: list[int], free: int) -> None:
    assert freest_run(runs) == free
