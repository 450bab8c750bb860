"""Slots of a published version: whose task owns them, in time that grows with their number only."""

from typing import Any

import pytest

from acktree.core.topology.registry import Published, Slot


def published(slots: int, tasks: int) -> Published:
    made = [Slot(slot=n, spout="s", topic="in", topic_id="x", partition=n) for n in range(slots)]
    return Published(name="t", version=1, spout_tasks={"s": tuple(range(tasks))}, slots=tuple(made))


def test_the_tasks_of_all_slots_are_found_without_comparing_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    topology, compared = published(slots=50, tasks=3), 0
    plain = Slot.__eq__

    def counted(slot: Slot, other: Any) -> bool:
        nonlocal compared
        compared += 1
        return plain(slot, other)

    monkeypatch.setattr(Slot, "__eq__", counted)
    assert [topology.task_of(slot) for slot in topology.slots] == [n % 3 for n in range(50)]
    assert compared == 0


def test_a_version_that_was_asked_for_tasks_equals_one_that_was_not() -> None:
    asked, other = published(slots=2, tasks=1), published(slots=2, tasks=1)
    asked.task_of(asked.slots[0])
    assert asked == other
    assert asked.model_dump() == other.model_dump()
