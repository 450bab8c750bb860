"""What may happen to the log that a stage in Python reads: damage, a lost end, gaps, large records."""

from typing import Any

import pytest

from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt, Reject, RetryLater
from acktree.producers.spouts.driver.sources.log_bounds import DataLoss
from acktree.producers.stages.source_reader import SourceReader
from acktree.producers.stages.stage_task import StageTask
from acktree.testing import TopologyTester
from simulated.test_stages import TEXT, counted, running

LOSSY = TEXT.replace("max_attempts = 3", "max_attempts = 3\nspark = {fail_on_data_loss = false}")


def copying(seconds: float = 0.0, slow: bytes = b"", slow_s: float = 0.0) -> type[BasicBolt]:
    """Return a bolt that emits each line; it takes ``seconds``, and one of them ``slow_s``."""

    class CopiesLines(BasicBolt):
        def execute(self, tup: Any, emit: Any) -> None:
            world.sleep(slow_s if tup.value == slow else seconds)
            emit(tup.value)

    return CopiesLines


def log_of(t: TopologyTester, topic: str = "lines", partition: int = 0) -> Any:
    return t.cluster.topics[topic].partitions[partition]


def send(t: TopologyTester, texts: Any, partition: int = 0) -> None:
    for text in texts:
        t.send("lines", text, partition=partition)


def test_a_damaged_line_is_skipped_and_said_where_losses_are_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(copying(), text=LOSSY) as t:
        send(t, ("0", "1", "2", "3"))
        log_of(t).damage(2)
        send(t, "ab", partition=1)
        t.run_until_done()
        assert sorted(t.values("words")) == ["0", "1", "3", "a", "b"]
        assert t.committed("lines", 0) == 4
        t.run_for(10)
        assert counted(t, "lost") == 1
    assert "lines/0: offsets 2 to 2 are damaged in the log and cannot be read" in caplog.text


def test_a_damaged_line_stops_a_stage_after_all_that_is_in_front_of_it() -> None:
    with running(copying(), restart_on=()) as t:
        send(t, map(str, range(500)))
        log_of(t).damage(400)
        with pytest.raises(DataLoss, match=r"offsets 400 to 400 are damaged.*failOnDataLoss=false"):
            t.run_for(120)
        assert t.committed("lines", 0) == 400
        assert len(t.values("words")) == 400


def test_a_record_of_a_lost_end_is_not_executed_for_the_one_that_stands_there_now() -> None:
    """It waits behind a slow one of its chunk while the log loses its end and is written again."""

    one_slow = copying(0.001, b"old40", 20.0)
    with running(one_slow, partitions=1, text=LOSSY.replace("message_timeout_s = 10", "")) as t:
        send(t, (f"old{number}" for number in range(2000)))
        t.run_until(lambda: (t.committed("lines", 0) or 0) >= 40)
        t.run_for(1.0)
        log_of(t).truncate(60)
        send(t, (f"new{number}" for number in range(60, 160)))
        t.run_until_done()
        words = t.values("words")
        assert t.committed("lines", 0) == 160
        assert {f"new{number}" for number in range(60, 160)} <= set(words)
        assert not {f"old{number}" for number in range(100, 2000)} & set(words)


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_log_that_loses_its_end_below_what_was_fetched_ahead_loses_no_record_in_silence(
    is_allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with running(copying(0.05), partitions=1, text=LOSSY if is_allowed else TEXT, restart_on=()) as t:
        send(t, (f"old{number}" for number in range(4900)))
        t.run_for(3.0)
        log_of(t).truncate(4800)
        if not is_allowed:
            with pytest.raises(DataLoss, match="ended at offset 4800, but records up to 4899 had been read"):
                t.run_for(10)
            return
        t.run_for(10)
        send(t, (f"new{number}" for number in range(4800, 4900)))
        t.run_until_done(limit_s=900)
        assert {f"new{number}" for number in range(4800, 4900)} <= set(t.values("words"))
        assert not {f"old{number}" for number in range(4800, 4900)} & set(t.values("words"))
    assert "lines/0 ended at offset 4800, below 4900" in caplog.text


@pytest.mark.parametrize("slow_s", [0.0, 0.5])
@pytest.mark.parametrize("is_allowed", [False, True])
def test_what_a_new_leader_has_written_in_place_of_lost_records_is_executed_or_stops_the_stage(
    is_allowed: bool, slow_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, and more than was lost: the ends of the log say nothing, only the leader epochs do."""
    text = LOSSY if is_allowed else TEXT
    with running(copying(slow_s), partitions=1, text=text, restart_on=()) as t:
        send(t, (f"old{number}" for number in range(20)))
        t.run_for(5.0)
        log_of(t).truncate(5, by_new_leader=True)
        if not is_allowed:
            send(t, (f"new{number}" for number in range(5, 40)))
            with pytest.raises(
                DataLoss, match=r"lines/0 ended at offset 5, .*other records may stand there now"
            ):
                t.run_for(60)
            return
        send(t, (f"new{number}" for number in range(5, 40)))
        t.run_until_done()
        assert {f"new{number}" for number in range(5, 40)} <= set(t.values("words"))
        assert t.committed("lines", 0) == 40
    assert "lines/0 ended at offset 5, below 20" in caplog.text


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_lost_end_that_was_seen_counts_though_the_log_is_written_again_before_it_is_acted_on(
    is_allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader has waited for a leader that lags behind; who asks the broker again sees the new records."""
    with running(copying(), partitions=1, text=LOSSY if is_allowed else TEXT, restart_on=()) as t:
        send(t, (f"old{number}" for number in range(20)))
        t.run_until_done()
        log_of(t).truncate(6)
        if not is_allowed:
            with pytest.raises(DataLoss, match="ended at offset 6, but records up to 19 had been read"):
                t.run_for(3.0)
        else:
            t.run_for(3.0)
        send(t, (f"new{number}" for number in range(6, 26)))
        t.run_until_done()
        t.run_for(10)
        assert {f"new{number}" for number in range(6, 26)} <= set(t.values("words"))
        assert t.committed("lines", 0) == 26
    assert is_allowed == ("lines/0 ended at offset 6, below 20" in caplog.text)


def test_a_log_that_ends_below_what_is_planned_ends_no_process_where_losses_are_allowed() -> None:
    with running(copying(0.05), partitions=1, text=LOSSY, restart_on=()) as t:
        send(t, (f"old{number}" for number in range(200)))
        t.run_for(2.0)
        process = t.service("split").process
        log_of(t).truncate(100)
        t.run_for(8.0)
        send(t, (f"new{number}" for number in range(100, 200)))
        t.run_until_done()
        assert t.service("split").process is process
        assert {f"new{number}" for number in range(100, 200)} <= set(t.values("words"))


def test_a_gap_of_offsets_costs_one_step() -> None:
    gap = 500_000_000
    with running(copying()) as t:
        send(t, "a")
        t.run_until_done()
        log_of(t).end_offset += gap
        send(t, "b")
        t.run_until(lambda: "b" in t.values("words"), 5)
        t.run_until_done()
        assert t.committed("lines", 0) == gap + 2


def test_a_gap_is_passed_while_what_is_in_front_of_it_is_not_done() -> None:
    with running(
        copying(slow=b"a", slow_s=60.0), partitions=1, text=TEXT.replace("message_timeout_s = 10", "")
    ) as t:
        send(t, "a")
        t.run_for(1)
        log_of(t).end_offset += 1_000_000
        send(t, "b")
        t.run_until_done()
        assert t.values("words") == ["a", "b"]
        assert t.committed("lines", 0) == 1_000_002


def test_a_due_retry_does_not_wait_behind_the_records_that_are_planned() -> None:
    tried_s: list[float] = []

    class RetriesOneLine(BasicBolt):
        def execute(self, tup: Any, emit: Any) -> None:
            world.sleep(1.0)
            emit(tup.value)
            if tup.value == b"retry":
                tried_s.append(world.monotonic_s())
                if len(tried_s) == 1:
                    raise RetryLater(5, "in five seconds")

    with running(RetriesOneLine, partitions=1) as t:
        send(t, ["retry", *map(str, range(3000))])
        t.run_until(lambda: len(tried_s) == 2, 60)
        assert tried_s[1] - tried_s[0] < 20


def test_a_stage_reads_a_topic_no_more_that_a_new_version_takes_out_of_its_spout() -> None:
    both = TEXT.replace('topics = ["lines"]', 'topics = ["lines", "other"]')
    with running(copying(), partitions=1, text=both, restart_on=()) as t:
        for topic in ("lines", "other"):
            t.send(topic, f"of {topic}")
        t.run_until_done()
        process = t.service("split").process
        t._as_operator(lambda: apply_topology("simulated", parse_topology(TEXT), {}))
        t.run_for(30)
        for topic in ("lines", "other"):
            t.send(topic, f"more of {topic}")
        t.run_for(30)
        t.cluster.delete_topic("other")
        t.send("lines", "the last")
        t.run_for(120)
        assert sorted(t.values("words")) == ["more of lines", "of lines", "of other", "the last"]
        assert t.service("split").process is process


def test_large_records_wait_in_the_log_and_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceReader, "max_bytes", 1 << 20)
    held: list[int] = []
    plan = StageTask._plan

    def watched(task: StageTask) -> None:
        plan(task)
        fetched = sum(each.size for each in task._reader._fetched.values())
        held.append(task._planned.held_bytes + fetched)

    monkeypatch.setattr(StageTask, "_plan", watched)

    with running(copying(0.1)) as t:
        for number in range(100):
            t.send("lines", b"x" * 200_000, partition=number % 2)
            t.run_for(0.01)
        t.run_until_done()
        assert sum(t.committed("lines", partition) or 0 for partition in range(2)) == 100
    assert max(held) < 4 << 20


@pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "before it starts"])
def test_a_damaged_result_costs_a_replay_of_what_is_in_flight_and_stops_nothing(
    is_running: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class CountsSlowly(BasicBolt):
        def execute(self, tup: Any, emit: Any) -> None:
            world.sleep(2.0)

    with running(copying(), CountsSlowly, restart_on=()) as t:
        send(t, ["a"])
        t.run_until(lambda: t.values("words") == ["a"])
        if is_running:
            t.pause("split", 5)
        else:
            t.kill("split", restart_after_s=5)
        t.run_for(4)
        results = log_of(t, "t.spout-0")
        results.damage(results.end_offset - 1)
        send(t, ["b"], partition=1)
        t.run_until_done()
        words = t.values("words")
        assert (words.count("a"), set(words)) == (2, {"a", "b"})
    assert "t.spout-0/0: results at offsets 0 to 0 are damaged in the log" in caplog.text


def test_a_damaged_record_of_the_registry_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with running(copying(), partitions=1, restart_on=()) as t:
        send(t, ["a"])
        t.run_until_done()
        registry = log_of(t, "t.topology")
        at = registry.end_offset
        registry.append(b"x", b"a stranger's", (), None)
        registry.damage(registry.end_offset - 1)
        t.run_for(10)
        newer = parse_topology(TEXT.replace("max_attempts = 3", "max_attempts = 4"))
        t._as_operator(lambda: apply_topology("simulated", newer, {}))
        t.kill("count", restart_after_s=2)
        send(t, ["b"])
        t.run_until_done()
        assert t.values("words") == ["a", "b"]
        assert t.service("count").runner._registry.history.latest.spouts["split"].max_attempts == 4
    assert f"t.topology/0: offsets {at} to {at} are damaged in the log and skipped" in caplog.text


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_line_that_is_damaged_before_its_retry_is_lost_or_stops_the_stage_but_is_never_just_done(
    is_allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class DelaysBadLines(BasicBolt):
        def execute(self, tup: Any, emit: Any) -> None:
            if tup.value == b"bad":
                raise RetryLater(5, "not yet")
            emit(tup.value)

    with running(DelaysBadLines, partitions=1, text=LOSSY if is_allowed else TEXT, restart_on=()) as t:
        send(t, ["bad", "good"])
        t.run_until(lambda: t.values("words") == ["good"])
        log_of(t).damage(0)
        if is_allowed:
            t.run_until_done()
            t.run_for(10)
            assert (t.committed("lines", 0), counted(t, "lost")) == (2, 1)
        else:
            with pytest.raises(DataLoss, match="offsets 0 to 0 are damaged"):
                t.run_for(30)
            assert t.committed("lines", 0) == 0
    assert "lines/0: offsets 0 to 0 are damaged in the log" in caplog.text


def test_a_line_that_is_damaged_when_it_is_given_up_becomes_a_dead_letter_that_says_so() -> None:
    class RejectsWords(BasicBolt):
        def execute(self, tup: Any, emit: Any) -> None:
            world.sleep(1.0)
            raise Reject("never")

    with running(copying(), RejectsWords, partitions=1, restart_on=()) as t:
        send(t, ["bad"])
        t.run_until(lambda: t.values("words") == ["bad"])
        log_of(t).damage(0)
        t.run_until_done()
        (letter,) = t.dead_letters()
        assert (letter.value, letter.reason) == (None, "never")
        assert t.committed("lines", 0) == 1
