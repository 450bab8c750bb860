"""A spout whose stage is a Python function: its offsets are committed when all that comes of them is done."""

import asyncio
import random
from typing import Any

import pytest

from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt, Reject, RetryLater, stage
from acktree.producers.spouts.driver.sources.log_bounds import DataLoss
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.producers.stages.source_reader import SourceReader
from acktree.producers.stages.stage_task import StageTask
from acktree.producers.stages.stage_worker import StageWorker
from acktree.testing import TopologyTester

TEXT = """
name = "t"
ackers = 2
message_timeout_s = 10
[spouts.split]
topics = ["lines"]
emits = ["words"]
max_attempts = 3
retry_initial_s = 1
[bolts.count]
reads = ["words"]
"""


@stage(reads="lines", emits="words")
def split(line: str) -> list[str]:
    return line.split()


class Count(BasicBolt):
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def execute(self, tup: Any, emit: Any) -> None:
        self.seen.append(tup.value)


class SplitBasic(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        for word in tup.value.split():
            emit(word)


class SplitByHand(Bolt):
    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup.value.split():
            collector.emit(word, anchors=tup)
        collector.ack(tup)


class SplitBatches(BatchBolt):
    def execute(self, tuples: Any, collector: Any) -> None:
        words = [(word, tup) for tup in tuples for word in tup.value.split()]
        collector.emit_many([word for word, _ in words], [tup for _, tup in words])


class SplitAsync(AsyncBolt):
    async def execute(self, tup: Any, emit: Any) -> None:
        await asyncio.sleep(0.1)
        for word in tup.value.split():
            emit(word)


class Poison(BasicBolt):
    error: Exception = ValueError("poison")

    def execute(self, tup: Any, emit: Any) -> None:
        if tup.value == b"bad":
            raise self.error
        emit(tup.value)


def running(of: Any, count: Any = None, text: str = TEXT, **more: Any) -> TopologyTester:
    made = {"partitions": 2, **more}
    return TopologyTester(parse_topology(text), spouts={"split": of}, bolts={"count": count or Count}, **made)


@pytest.mark.parametrize("of", [split, SplitBasic, SplitByHand, SplitBatches, SplitAsync])
def test_lines_are_committed_when_their_words_are_done(of: Any) -> None:
    with running(of) as t:
        for number in range(100):
            t.send("lines", f"a b{number} c")
        t.run_until_done()
        assert sorted(t.values("words")) == sorted([*["a", "c"] * 100, *(f"b{n}" for n in range(100))])
        assert sum(t.committed("lines", partition) or 0 for partition in range(2)) == 100
        assert len(t.acked("split")) == 100


@pytest.mark.parametrize("of", [split, SplitBasic, SplitByHand, SplitBatches, SplitAsync])
def test_a_line_with_unreadable_headers_is_rejected_alone(of: Any) -> None:
    trace = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    with running(of, partitions=1) as t:
        process = t.service("split").process
        t.send("lines", "a")
        t.send("lines", "bad", headers=[("caf\udce9", b"x")])
        t.send("lines", "c", headers=trace)
        t.run_until_done()
        t.replay("lines", 0, 1, 2)
        t.run_until(lambda: len(t.dead_letters()) == 2)
        t.run_until_done()
        assert t.service("split").process is process
        assert t.values("words") == ["a", "c"]
        assert [name for word in t.records("words") for name, _ in word.headers] == ["traceparent"]
        letters = t.dead_letters()
        assert [(letter.source_offset, letter.cause) for letter in letters] == [(1, "REJECTED")] * 2
        assert {letter.reason for letter in letters} == {"a header whose name is not UTF-8"}


def test_a_line_without_words_is_done() -> None:
    with running(split) as t:
        t.send("lines", "")
        t.run_until_done()
        assert t.values("words") == []


@pytest.mark.parametrize("away_s", [30.0, 200.0])
def test_a_stage_with_nothing_to_do_waits_for_a_broker_that_is_away(away_s: float) -> None:
    with running(split) as t:
        t.send("lines", "a")
        t.run_until_done()
        process = t.service("split").process
        t.broker_away(away_s)
        t.run_for(away_s + 10)
        assert t.service("split").process is process
        t.send("lines", "b")
        t.run_until_done()
        assert sorted(t.values("words")) == ["a", "b"]


@pytest.mark.parametrize("away_s", [8.0, 16.0, 30.0, 50.0, 200.0])
@pytest.mark.parametrize("when_s", [0.001, 0.004, 0.008, 0.012, 0.016, 0.02])
def test_a_stage_at_work_waits_for_a_broker_that_is_away(when_s: float, away_s: float) -> None:
    with running(split) as t:
        t.send("lines", "a")
        t.run_until_done()
        process = t.service("split").process
        for number in range(100):
            t.send("lines", f"line {number}")
        t.run_for(when_s)
        t.broker_away(away_s)
        t.run_for(away_s + 10)
        t.run_until_done()
        assert t.service("split").process is process
        assert t.values("words").count("line") == 100


@pytest.mark.parametrize("when_s", [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0])
def test_a_task_that_a_running_process_begins_waits_for_a_broker_that_is_away(when_s: float) -> None:
    with running(split) as t:
        t.send("lines", "a")
        t.run_until_done()
        process = t.service("split").process
        newer = parse_topology(TEXT.replace("max_attempts = 3", "max_attempts = 3\ntasks = 2"))
        t._as_operator(lambda: apply_topology("simulated", newer, {}))
        t.run_for(when_s)
        t.broker_away(30.0)
        for number in range(20):
            t.send("lines", str(number))
        t.run_for(60.0)
        t.run_until_done()
        assert t.service("split").process is process
        assert set(t.values("words")) == {"a", *map(str, range(20))}, "what timed out meanwhile comes twice"


class HeldWord(BasicBolt):
    """Executes words that begin with h at ``until_s``."""

    until_s = 0.0

    def execute(self, tup: Any, emit: Any) -> None:
        if tup.value.startswith(b"h"):
            world.sleep(max(0.0, HeldWord.until_s - world.monotonic_s()))


def deal(t: TopologyTester, tasks: int) -> None:
    t._as_operator(lambda: apply_topology("simulated", parse_topology(with_tasks(tasks)), {}))


def with_tasks(tasks: int) -> str:
    return TEXT.replace("message_timeout_s = 10", "message_timeout_s = 300").replace(
        "max_attempts = 3", f"max_attempts = 3\ntasks = {tasks}"
    )


@pytest.mark.parametrize(
    ("between", "is_emitted_between", "late"),
    [pytest.param(1, True, 1, id="2-1-2"), pytest.param(3, False, 2, id="2-3-2")],
)
def test_records_in_flight_end_where_another_number_of_tasks_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, between: int, is_emitted_between: bool, late: int
) -> None:
    """Task 1 comes back to what task 0 has emitted; or task 0 to results that it has read as another's."""
    late_s, make_task = 0.0, StageWorker.make_task

    def make_late(self: StageWorker, options: SpoutOptions, *more: Any) -> StageTask:
        world.sleep(late_s if options.task == late else 0.0)
        return make_task(self, options, *more)

    monkeypatch.setattr(StageWorker, "make_task", make_late)
    partitions = {"lines": 3, "words": 4}
    with running(SplitBasic, HeldWord, with_tasks(2), partitions=partitions) as t:
        for partition in range(3):
            t.send("lines", "a", partition=partition)
        t.run_until_done()
        if is_emitted_between:
            deal(t, between)
            t.run_for(25.0)
        HeldWord.until_s = t.now_s + 15.0
        for partition in range(3):
            t.send("lines", "h", partition=partition)
        t.run_until(lambda: t.values("words").count("h") == 3)
        if not is_emitted_between:
            late_s = 60.0
            deal(t, between)
            t.run_for(25.0)
        else:
            late_s = 3.0
        deal(t, 2)
        t.run_for(100.0)
        assert [t.committed("lines", partition) for partition in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("name", ["split", "count", "acker"])
@pytest.mark.parametrize("when_s", [0.005, 0.05, 1.0])
def test_nothing_is_lost_when_a_process_is_killed(name: str, when_s: float) -> None:
    with running(split) as t:
        for number in range(50):
            t.send("lines", f"a{number} b{number}")
        t.run_for(when_s)
        t.kill(name)
        t.run_until_done()
        assert {*t.values("words")} == {f"{letter}{n}" for letter in "ab" for n in range(50)}
        assert len(t.acked("split")) == 50
        if name != "count":
            assert len(t.values("words")) == 100, "what the state says is written is not written again"


@pytest.mark.parametrize("error", [ValueError("poison"), Reject("poison")])
def test_a_record_that_raises_fails_alone_and_becomes_a_dead_letter(error: Exception) -> None:
    bolt = Poison()
    bolt.error = error
    with running(bolt) as t:
        for value in ("good", "bad", "fine"):
            t.send("lines", value, partition=0)
        t.run_until_done()
        assert sorted(t.values("words")) == ["fine", "good"]
        (letter,) = t.dead_letters()
        assert letter.source_offset == 1
        assert letter.attempts == (1 if isinstance(error, Reject) else 3)
        assert "poison" in letter.reason
        assert t.committed("lines", 0) == 3


def test_a_line_is_emitted_again_if_its_tuple_fails_in_a_bolt() -> None:
    class FailsOnce(BasicBolt):
        has_failed = False

        def execute(self, tup: Any, emit: Any) -> None:
            if not FailsOnce.has_failed:
                FailsOnce.has_failed = True
                raise ValueError("once")

    with running(split, FailsOnce) as t:
        t.send("lines", "a b")
        t.run_until_done()
        assert sorted(t.values("words")) == ["a", "a", "b", "b"]
        assert list(t.replays("split").values()) == [1]


def test_a_slow_record_holds_no_other_up() -> None:
    class SlowForOne(AsyncBolt):
        async def execute(self, tup: Any, emit: Any) -> None:
            if tup.value == b"slow":
                await asyncio.sleep(100)
            emit(tup.value)

    with running(SlowForOne) as t:
        t.send("lines", "slow", partition=0)
        for number in range(20):
            t.send("lines", str(number), partition=0)
        t.run_for(5)
        assert len(t.values("words")) == 20
        assert t.committed("lines", 0) == 0
        t.run_until_done()
        assert t.committed("lines", 0) == 21


class AwaitsOldLine(AsyncBolt):
    """Delays the line "old" once, and then awaits something for long."""

    has_begun = is_delayed = False

    async def execute(self, tup: Any, emit: Any) -> None:
        if tup.value == b"old":
            if not self.is_delayed:
                self.is_delayed = True
                raise RetryLater(20, "not yet")
            self.has_begun = True
            await asyncio.sleep(15)
        emit(tup.value)


class KeepsOldLine(Bolt):
    """Delays the line "old" once, and then keeps it in hand until the line "end"."""

    has_begun = is_delayed = False

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def execute(self, tup: Any, collector: Any) -> None:
        if tup.value == b"old" and not self.is_delayed:
            self.is_delayed = True
            collector.fail(tup, "not yet", retry_after_s=20)
            return
        self.kept.append(tup)
        self.has_begun = tup.value == b"old"
        for each in [each for each in self.kept if each.value != b"old" or tup.value == b"end"]:
            self.kept.remove(each)
            collector.emit(each.value, anchors=each)
            collector.ack(each)


@pytest.mark.parametrize("of", [AwaitsOldLine, KeepsOldLine])
def test_a_slow_retry_holds_no_line_up_however_many_offsets_are_between(of: Any) -> None:
    bolt = of()
    with running(bolt, partitions=1) as t:
        t.send("lines", "old")
        t.run_for(5)
        t.cluster.topics["lines"].partitions[0].end_offset += 30_000  # as compaction leaves it
        t.send("lines", "before")
        t.run_until(lambda: bolt.has_begun)
        for number in range(10):
            t.send("lines", f"new{number}")
        t.run_for(10)
        assert len(t.values("words")) == 11
        t.send("lines", "end")
        t.run_until_done()


def test_a_rewind_emits_its_records_again() -> None:
    with running(split) as t:
        for number in range(10):
            t.send("lines", str(number), partition=0)
        t.run_until_done()
        t.rewind("lines", 0, 4)
        t.run_until(lambda: len(t.values("words")) == 16)
        t.run_until_done()
        assert t.committed("lines", 0) == 10


def test_a_rewind_of_a_partition_that_is_paused_emits_its_records_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client keeps a partition paused that is assigned again."""
    monkeypatch.setattr(SourceReader, "max_records", 5)
    text = TEXT.replace("max_attempts = 3", "max_attempts = 3\nmax_pending = 1")
    with running(split, text=text) as t:
        for number in range(40):
            t.send("lines", str(number), partition=0)
        t.run_until(lambda: len(t.values("words")) == 10)
        t.rewind("lines", 0, 0)
        t.run_until_done()
        assert len(t.values("words")) > 45
        assert t.committed("lines", 0) == 40


@pytest.mark.parametrize("seed", range(20))
def test_rewinds_at_any_moment_never_stop_a_stage(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(SourceReader, "max_records", draw.choice([1, 3, 1_000]))
    text = TEXT.replace("max_attempts = 3", f"tasks = {draw.choice([1, 2])}")
    with running(split, text=text, seed=seed) as t:
        for number in range(40):
            t.send("lines", str(number), partition=number % 2)
        for _ in range(6):
            t.run_for(draw.choice([0.01, 0.1, 0.6]))
            partition = draw.randrange(2)
            t.rewind("lines", partition, draw.randint(0, t.committed("lines", partition) or 0))
            for number in range(draw.choice([0, 10])):
                t.send("lines", f"more {number}", partition=partition)
        t.run_until_done()
        assert set(t.values("words")) >= {str(number) for number in range(40)}


def join_group(t: TopologyTester, seconds: float) -> None:
    """Let a stray consumer be a member of the spout's group for a while."""

    def consume() -> None:
        consumer = make_consumer({"bootstrap.servers": "simulated", "group.id": "t.split"})
        consumer.subscribe(["lines"])
        until_s = world.monotonic_s() + seconds
        while world.monotonic_s() < until_s:
            consumer.poll(0.1)
        consumer.close()

    t.kernel.spawn(t.kernel.process("stray"), consume, "main")
    t.run_for(2)


@pytest.mark.parametrize("event", ["replay", "tasks", "stop"])
def test_a_stage_goes_on_once_a_stray_consumer_has_left_its_group(event: str) -> None:
    with running(split) as t:
        for number in range(10):
            t.send("lines", str(number), partition=number % 2)
        t.run_until_done()
        process = t.service("split").process
        join_group(t, 40)
        if event == "replay":
            t.replay("lines", 0, 1, 3)
        if event == "tasks":
            newer = parse_topology(TEXT.replace("max_attempts = 3", "max_attempts = 3\ntasks = 2"))
            t._as_operator(lambda: apply_topology("simulated", newer, {}))
        t.send("lines", "more")
        t.run_for(60)
        t.run_until_done()
        assert t.service("split").process is process
        assert len(t.values("words")) == (13 if event == "replay" else 11)


@pytest.mark.parametrize("seed", range(5))
def test_a_stage_with_many_tasks_goes_on_when_its_topic_gets_more_partitions(seed: int) -> None:
    with running(split, text=TEXT.replace("max_attempts = 3", "tasks = 8"), seed=seed) as t:
        t.send("lines", "a")
        t.run_until_done()
        process = t.service("split").process
        t.cluster.grow_topic("lines", 12)
        for partition in range(12):
            t.send("lines", f"more{partition}", partition=partition)
        t.run_until_done()
        assert t.service("split").process is process
        assert len(t.values("words")) == 13


class SplitSlowly(AsyncBolt):
    async def execute(self, tup: Any, emit: Any) -> None:
        await asyncio.sleep(15.0 if tup.value == b"slow" else 0.01)
        emit(tup.value)


def test_a_topic_that_is_recreated_while_a_record_is_executed_is_read_from_its_start() -> None:
    text = TEXT.replace("max_attempts = 3", "max_attempts = 3\nspark = {fail_on_data_loss = false}")
    with running(SplitSlowly, text=text, partitions=1) as t:
        t.send("lines", "slow")
        t.send("lines", "old")
        t.run_for(1)
        t.cluster.delete_topic("lines")
        t.cluster.create_topic("lines", 1)
        for number in range(5):
            t.send("lines", f"new{number}")
        t.run_for(60)
        t.run_until_done()
        assert set(t.values("words")) >= {f"new{number}" for number in range(5)}
        assert t.committed("lines", 0) == 5


def test_a_replay_command_emits_its_records_again() -> None:
    with running(split) as t:
        for number in range(10):
            t.send("lines", str(number), partition=0)
        t.run_until_done()
        t.replay("lines", 0, 2, 5)
        t.run_until(lambda: len(t.values("words")) == 13)
        t.run_until_done()


def test_a_stage_that_was_stalled_continues() -> None:
    with running(split) as t:
        for number in range(10):
            t.send("lines", str(number))
        t.run_until_done()
        t.pause("split", 30)
        t.send("lines", "later")
        t.run_until_done()
        assert len(t.values("words")) == 11


def test_without_ackers_a_line_is_done_when_its_words_are_written() -> None:
    with running(split, text=TEXT.replace("ackers = 2", "ackers = 0")) as t:
        for number in range(10):
            t.send("lines", str(number), partition=0)
        t.run_until_done()
        t.run_for(5)
        assert t.committed("lines", 0) == 10


def test_a_record_removed_by_retention_before_its_retry_is_never_silently_done() -> None:
    with running(Poison(), text=TEXT.replace("retry_initial_s = 1", "retry_initial_s = 30")) as t:
        for value in ("good", "bad", "fine"):
            t.send("lines", value, partition=0)
        t.run_until(lambda: len(t.values("words")) == 2)
        t.cluster.topics["lines"].partitions[0].delete_before(2)
        with pytest.raises(DataLoss, match=r"lines/0 begins at offset 2, but group t\.split is at 1"):
            t.run_for(100)
        assert t.committed("lines", 0) == 1


FORGIVING = TEXT.replace("max_attempts = 3", "max_attempts = 3\nspark = {fail_on_data_loss = false}")


def lost_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the stage has logged of records that are lost."""
    return [each.getMessage() for each in caplog.records if getattr(each, "action", "") == "records_lost"]


def counted(t: TopologyTester, name: str) -> int:
    """Return what the tasks of the stage have counted."""
    return sum(int(report.values[name]) for report in t.service("split").runner.reports.newest)


@pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "before it starts"])
def test_lines_removed_by_retention_before_they_are_read_are_logged_and_counted_as_lost(
    is_running: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with running(split, text=FORGIVING, partitions=1) as t:
        t.send("lines", "first")
        t.run_until_done()
        log = t.cluster.topics["lines"].partitions[0]
        if is_running:
            t.pause("split", 3)
        else:
            t.kill("split", restart_after_s=30)
        for number in range(5_000):
            t.send("lines", str(number))
        log.delete_before(4_901)
        t.run_until(lambda: t.committed("lines", 0) == 5_001)
        t.run_for(10)
        assert t.values("words") == ["first", *map(str, range(4_900, 5_000))]
        assert lost_lines(caplog) == [
            "lines/0: 4900 offset(s) from 1 to 4900 are lost and counted as done: removed, for example by "
            "retention, before they were read"
        ]
        assert counted(t, "lost") == 4_900
        assert counted(t, "absent") == 0


def test_a_line_removed_by_retention_before_its_retry_is_logged_and_counted_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(Poison(), text=FORGIVING.replace("retry_initial_s = 1", "retry_initial_s = 30")) as t:
        for value in ("good", "bad", "bad", "fine"):
            t.send("lines", value, partition=0)
        t.run_until(lambda: len(t.values("words")) == 2)
        t.cluster.topics["lines"].partitions[0].delete_before(2)
        t.run_until(lambda: len(t.dead_letters()) == 1)
        t.run_until_done()
        assert t.committed("lines", 0) == 4
        assert lost_lines(caplog) == [
            "lines/0: 1 offset(s) from 1 to 1 are lost and counted as done: removed, for example by "
            "retention, before they were emitted again"
        ]
        assert (counted(t, "lost"), counted(t, "absent")) == (1, 0)


def test_a_line_emitted_with_ackers_waits_for_them_even_if_a_newer_version_has_none() -> None:
    class TakesTwentySeconds(AsyncBolt):
        async def execute(self, tup: Any, emit: Any) -> None:
            await asyncio.sleep(20)
            emit(tup.value)

    class LeavesInHand(Bolt):
        def execute(self, tup: Any, collector: Any) -> None:
            pass

    with running(
        TakesTwentySeconds,
        LeavesInHand,
        text=TEXT.replace("message_timeout_s = 10", "message_timeout_s = 600"),
    ) as t:
        t.send("lines", "planned under version 1", partition=0)
        t.run_for(5)
        newer = parse_topology(TEXT.replace("ackers = 2", "ackers = 0"))
        t._as_operator(lambda: apply_topology("simulated", newer, {}))
        t.run_until(lambda: len(t.values("words")) == 1)
        t.run_for(10)
        assert t.committed("lines", 0) in (None, 0)
