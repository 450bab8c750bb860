"""The search of source logs: that it finds nothing in what is right, and what is broken in few seeds."""

from collections import deque
from typing import Any

import pytest

from acktree.core.kafka.log_reader import LogReader
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.stages.planned_records import PlannedRecords
from acktree.producers.stages.stage_task import StageTask
from acktree.producers.tuples import size_of
from simulation.source_logs import run_seed
from simulation.test_search import first_broken

SEEDS = range(10)


def test_no_promise_is_broken():
    outcomes = [run_seed(seed) for seed in SEEDS]
    assert {each.seed: each.error for each in outcomes if each.error is not None} == {}
    counters = sum((each.counters for each in outcomes[1:]), outcomes[0].counters)
    names = "damaged", "removed", "truncated", "written again", "passed and said so"
    assert all(counters[name] for name in names)
    assert counters["stopped by DataLoss"]


def test_what_was_done_beyond_a_lost_end_and_is_to_be_emitted_from_before_it_counts_no_more():
    """Nobody compared the log's end with what is done above the next offset to emit."""
    assert run_seed(39).error is None


def test_two_runs_of_a_seed_are_equal():
    assert run_seed(3).events == run_seed(3).events


@pytest.mark.slow
def test_records_of_a_lost_end_that_are_executed_for_new_ones_are_found(monkeypatch):
    """A record that waits has only its offset, and takes the anchor that its offset has at present."""

    def take(planned: Any, limit: int) -> list[Any]:
        first: dict[Any, Any] = {}
        for each in planned._waiting:
            if each.offset not in planned._anchors or each.offset in first:
                planned.held_bytes -= size_of(each.record)
            else:
                first[each.offset] = each._replace(anchor=planned._anchors[each.offset])
        planned._waiting = deque(first.values())
        return right(planned, limit)

    right = PlannedRecords.take
    monkeypatch.setattr(PlannedRecords, "take", take)
    first_broken(range(30, 50), run_seed)  # it takes a slow record in front of others while their log falls


@pytest.mark.slow
def test_a_lost_end_that_is_not_reported_is_found(monkeypatch):
    def wait_on(reader, _place, _end, position):
        reader._wait(position)
        return []

    monkeypatch.setattr(LogReader, "_beyond", wait_on)
    first_broken(range(170, 190), run_seed)


def test_a_lost_end_that_only_the_check_of_the_sources_acts_on_is_found(monkeypatch):
    def look_at(task, troubles):
        for trouble in troubles:
            if trouble.found is trouble.found.FELL:
                task._driver.check_sources()
            else:
                right(task, [trouble])

    right = StageTask._look_at
    monkeypatch.setattr(StageTask, "_look_at", look_at)
    first_broken(range(20), run_seed)


def test_a_start_that_does_not_know_whose_log_was_read_is_found(monkeypatch):
    monkeypatch.setattr(PartitionLedger, "saw", lambda _ledger, _epoch: None)
    first_broken(range(30, 40), run_seed)
