"""Of large records few are in memory at once, whatever waits for them."""

from typing import Any

import pytest

from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt, Reject, RetryLater
from acktree.producers.spouts.driver.one_record import MAX_BYTES
from acktree.producers.spouts.state_topic import StateTopic
from acktree.producers.stages import stage_task
from acktree.producers.stages.planned_records import PlannedRecords
from acktree.producers.stages.source_reader import SourceReader
from acktree.testing import TopologyTester

TEXT = """
name = "t"
[spouts.lines]
topics = ["lines"]
emits = ["words"]
failure_min_results = 1_000
[bolts.count]
reads = ["words"]
"""
LINE = b"x" * 500_000


class RejectsAll(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        raise Reject("never")


class AcksAll(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        pass


class FirstByte(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        emit(tup.value[:1])


def on(engine: str, bolt: type[BasicBolt] = RejectsAll, stage: type[BasicBolt] = FirstByte) -> TopologyTester:
    runs = {"stages": {"lines": lambda row: [row.value[:1]]}, "spouts": {"lines": stage}}
    return TopologyTester(parse_topology(TEXT), bolts={"count": bolt}, partitions=2, **{engine: runs[engine]})


@pytest.mark.parametrize("engine", ["stages", "spouts"])
def test_dead_letters_of_large_records_are_read_and_written_few_at_a_time(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, together = StateTopic.commit, list[int]()

    def watched(state: StateTopic, records: Any, letters: Any = (), *more: Any, **named: Any) -> None:
        together.append(sum(len(letter.forms[0][1] or b"") for letter in letters))
        commit(state, records, letters, *more, **named)

    monkeypatch.setattr(StateTopic, "commit", watched)
    with on(engine) as t:
        for number in range(100):
            t.send("lines", LINE, partition=number % 2)
        t.run_until_done()
        assert len(t.dead_letters()) == 100
        assert sum(t.committed("lines", partition) or 0 for partition in range(2)) == 100
    assert max(together) < MAX_BYTES + 2 * len(LINE)


class DelaysFirstAttempts(BasicBolt):
    """Delays all of them to the same moment."""

    due_s = 0.0

    def execute(self, tup: Any, emit: Any) -> None:
        if tup.origin.attempt == 0:
            self.due_s = self.due_s or world.monotonic_s() + 60
            raise RetryLater(self.due_s - world.monotonic_s(), "not yet")


def test_large_records_that_are_due_again_wait_in_the_log_and_not_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add, held = PlannedRecords.add, list[int]()

    def watched(planned: PlannedRecords, *about: Any, **named: Any) -> Any:
        found = add(planned, *about, **named)
        held.append(planned.held_bytes)
        return found

    monkeypatch.setattr(SourceReader, "max_bytes", 2 << 20)
    monkeypatch.setattr(PlannedRecords, "add", watched)
    with on("spouts", DelaysFirstAttempts) as t:
        for number in range(40):
            t.send("lines", LINE, partition=number % 2)
        t.run_until_done()
        assert len(t.values("words")) == 80
        assert [t.committed("lines", partition) for partition in range(2)] == [20, 20]
    assert max(held) < (2 << 20) + 2 * len(LINE)


class EmitsMuch(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        emit(LINE)


def test_large_tuples_of_a_stage_are_written_before_more_of_them_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_task, "COMMIT_BYTES", 2 << 20)
    commit, together = StateTopic.commit, list[int]()

    def watched(state: StateTopic, records: Any, letters: Any = (), output: Any = (), **named: Any) -> None:
        together.append(sum(len(each[1] or b"") for each in output))
        commit(state, records, letters, output, **named)

    monkeypatch.setattr(StateTopic, "commit", watched)
    with on("spouts", AcksAll, stage=EmitsMuch) as t:
        for number in range(100):
            t.send("lines", str(number), partition=number % 2)
        t.run_until_done()
        assert len(t.records("words")) == 100
    assert max(together) < (2 << 20) + 2 * len(LINE)
