"""The tester of topologies: what users see of it, on topologies of every kind, with every kind of fault."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from acktree.core.topology.file import Topology, parse_topology
from acktree.producers import (
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Failure,
    Spout,
)
from acktree.testing import MOMENTS, TopologyTester
from acktree.testing.virtual.errors import (
    FaultNeverStruck,
    MissingPart,
    NotStarted,
    TookTooLong,
    UnknownFault,
    UnknownName,
)
from acktree.wire.control_records import Cause
from acktree.wire.trace_context import context_of

LINES = """
name = "t"
ackers = 2
[spouts.lines]
topics = ["lines"]
emits = ["words"]
max_attempts = 3
retry_initial_s = 0.1
[bolts.upper]
reads = ["words"]
emits = ["loud"]
[bolts.keep]
reads = ["loud"]
"""
NUMBERS = """
name = "t"
ackers = 2
[spouts.numbers]
emits = ["a"]
[bolts.upper]
reads = ["a"]
emits = ["loud"]
[bolts.keep]
reads = ["loud"]
"""


class UpperCase(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value.upper(), key=tup.key)


class KeepAll(BasicBolt):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def execute(self, tup, emit):
        self.kept.append(tup.value)


class TwentyNumbers(Spout):
    """Emits some numbers, and again those that fail."""

    def __init__(self, count: int = 20) -> None:
        self.waiting = [str(number) for number in range(count)]

    def next_tuple(self, emitter):
        if self.waiting:
            number = self.waiting.pop(0)
            emitter.emit(number, number)

    def fail(self, message, failure: Failure):
        self.waiting.append(message.id)


def words(row: Any) -> list[bytes]:
    return row.value.split()


def lines(**more: Any) -> TopologyTester:
    parts = {"stages": {"lines": words}, "bolts": {"upper": UpperCase, "keep": KeepAll}}
    return TopologyTester(parse_topology(LINES), **{**parts, **more})


def numbers(topology: str = NUMBERS, **more: Any) -> TopologyTester:
    parts = {"spouts": {"numbers": TwentyNumbers}, "bolts": {"upper": UpperCase, "keep": KeepAll}}
    return TopologyTester(parse_topology(topology), **{**parts, **more})


# What runs.


def test_records_go_from_the_source_topic_through_spark_and_bolts_and_are_acked():
    with lines() as tester:
        sent = [tester.send("lines", f"line {number}", key=str(number)) for number in range(50)]
        assert tester.pending("lines") == 50
        tester.run_until_done()
        assert sorted(tester.values("loud")) == sorted([*["LINE"] * 50, *map(str, range(50))])
        assert sorted(tester.acked("lines"), key=lambda record: record.place) == sorted(
            sent, key=lambda record: record.place
        )
        assert (tester.pending(), tester.replays("lines"), tester.dead_letters()) == (0, {}, [])
        ends = [tester.committed("lines", partition) for partition in range(4)]
        assert sum(ends) == 50
        assert tester.now_s < 10


def test_a_python_spout_hears_of_every_message():
    with numbers() as tester:
        tester.run_until_done()
        assert sorted(tester.acked("numbers"), key=int) == [str(number) for number in range(20)]
        assert tester.failures("numbers") == []
        assert sorted(tester.handler("keep").kept, key=int) == [b"%d" % number for number in range(20)]


class UpperByHand(Bolt):
    """Acks by hand, one tick later."""

    tick_interval_s = 1.0

    def __init__(self) -> None:
        self.held: list[Any] = []

    def execute(self, tup, collector):
        self.held.append(tup)

    def tick(self, collector):
        for tup in reversed(self.held):
            collector.emit(tup.value.upper(), anchors=tup)
            collector.ack(tup)
        self.held.clear()


class UpperBatches(BatchBolt):
    def execute(self, tuples, collector):
        collector.emit_many([value.upper() for value in tuples.values], tuples)


class UpperLater(AsyncBolt):
    async def execute(self, tup, emit):
        await asyncio.sleep(5)
        emit(tup.value.upper())


class UpperTables(BatchBolt):
    def execute(self, tuples, collector):
        table = tuples.table()
        values = [value.upper() for value in table["value"].to_pylist()]
        collector.emit_many(values, table["row"])


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", [UpperCase, UpperByHand, UpperBatches, UpperLater, UpperTables])
def test_every_kind_of_bolt_runs_and_survives_a_kill(kind: type[Any], exactly_once: bool):
    topology = NUMBERS.replace('emits = ["loud"]', f'emits = ["loud"]\nexactly_once = {exactly_once}'.lower())
    with numbers(topology, bolts={"upper": kind, "keep": KeepAll}, workers={"upper": 2}) as tester:
        tester.kill("upper", when="between child and ack")
        tester.run_until_done()
        assert len(tester.acked("numbers")) == 20
        loud = sorted(tester.values("loud"), key=int)
        if exactly_once:
            assert loud == [str(number) for number in range(20)]
        else:
            assert len(loud) > 20
            assert len(set(loud)) == 20


class JoinSides(Bolt):
    """Joins the two sides of a key."""

    def __init__(self) -> None:
        self.sides: dict[bytes, dict[str, Any]] = {}

    def execute(self, tup, collector):
        sides = self.sides.setdefault(tup.key, {})
        sides[tup.topic] = tup
        if len(sides) == 2:
            left, right = sides["left"], sides["right"]
            collector.emit(left.value + b"+" + right.value, anchors=[left, right])
            for side in (left, right):
                collector.ack(side)
            del self.sides[tup.key]


JOIN = """
name = "j"
[spouts.lines]
topics = ["lines"]
emits = ["left", "right"]
[bolts.join]
reads = ["left", "right"]
emits = ["pairs"]
[bolts.keep]
reads = ["pairs"]
"""


def test_a_join_of_two_topics_acks_both_trees():
    def both(row):
        yield {"topic": "left", "value": row.value, "key": row.key}
        yield {"topic": "right", "value": row.value[::-1], "key": row.key}

    topology = parse_topology(JOIN)
    with TopologyTester(
        topology, stages={"lines": both}, bolts={"join": JoinSides, "keep": KeepAll}
    ) as tester:
        for number in range(10):
            tester.send("lines", f"a{number}", key=str(number))
        tester.run_until_done()
        assert sorted(tester.values("pairs")) == [f"a{number}+{number}a" for number in range(10)]
        assert len(tester.acked("lines")) == 10


def test_a_bolt_may_be_a_spark_stage():
    def upper(row):
        yield {"value": row.value.upper(), "key": row.key}

    with lines(stages={"lines": words, "upper": upper}, bolts={"keep": KeepAll}) as tester:
        tester.send("lines", "to be")
        tester.run_until_done()
        assert sorted(tester.values("loud")) == ["BE", "TO"]


def test_a_trace_follows_its_record_through_stages_and_bolts():
    def upper(row):
        yield {"value": row.value.upper(), "key": row.key}

    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    traced = [("traceparent", f"00-{trace}-00f067aa0ba902b7-01".encode()), ("tracestate", b"a=1")]
    in_spark = {"stages": {"lines": words, "upper": upper}, "bolts": {"keep": KeepAll}}
    in_worker = {"stages": {"lines": words}, "bolts": {"upper": UpperCase, "keep": KeepAll}}
    for parts in (in_spark, in_worker):
        with lines(**parts) as tester:
            tester.send("lines", "to be", headers=traced)
            tester.send("lines", "or not")
            tester.run_until_done()
            for topic in ("words", "loud"):
                found = {
                    (record.value or b"").lower(): context_of(record.headers)
                    for record in tester.records(topic)
                }
                assert {value for value, context in found.items() if context} == {b"to", b"be"}
                assert {(c.trace_id, c.state) for c in found.values() if c} == {(trace, b"a=1")}


def test_parts_are_given_as_classes_instances_functions_and_names(tmp_path, monkeypatch):
    (tmp_path / "my_bolts.py").write_text(
        "from acktree.producers import BasicBolt\n"
        "class Upper(BasicBolt):\n"
        "    def execute(self, tup, emit):\n"
        "        emit(tup.value.upper())\n"
        "def words(row):\n"
        "    return row.value.split()\n"
    )
    (tmp_path / "topology.toml").write_text(LINES)
    monkeypatch.chdir(tmp_path)
    kept = KeepAll()
    stages, bolts = {"lines": "my_bolts:words"}, {"upper": "my_bolts:Upper", "keep": kept}
    with TopologyTester("topology.toml", stages=stages, bolts=bolts) as tester:
        tester.send("lines", "a b")
        tester.run_until_done()
    assert sorted(kept.kept) == [b"A", b"B"]


def test_a_topic_has_the_partitions_that_the_topology_states_for_it():
    text = LINES.replace('emits = ["words"]', 'emits = [{topic = "words", partitions = 5}]')
    parts = {"bolts": {"upper": UpperCase, "keep": KeepAll()}, "stages": {"lines": lambda row: [row.value]}}
    with TopologyTester(parse_topology(text), partitions=2, **parts) as tester:
        counts = {topic: len(tester.cluster.topics[topic].partitions) for topic in ("lines", "words", "loud")}
        assert counts == {"lines": 2, "words": 5, "loud": 2}
        line = tester.send("lines", "a")
        tester.run_until_done()
        assert tester.acked("lines") == [line]


def test_several_workers_divide_the_partitions_of_a_bolt():
    with numbers(workers={"keep": 2}) as tester:
        tester.run_until_done()
        counts = [tester.handler(f"keep-{number}").kept for number in range(2)]
        assert all(counts)
        assert sum(map(len, counts)) == 20


def test_a_clean_stop_calls_cleanup():
    class KeepsUntilClosed(KeepAll):
        def cleanup(self):
            self.kept.append(b"closed")

    keep = KeepsUntilClosed()
    with numbers(bolts={"upper": UpperCase, "keep": keep}) as tester:
        tester.run_until_done()
        assert keep.kept[-1] != b"closed"
    assert keep.kept[-1] == b"closed"


def test_the_same_seed_gives_the_same_log_and_another_one_another():
    def log_of(seed: int) -> list[str]:
        with lines(seed=seed, workers={"upper": 2}) as tester:
            tester.kill("upper", when="between child and ack")
            for number in range(30):
                tester.send("lines", f"line {number}")
            tester.run_until_done()
            return tester.log()

    first = log_of(7)
    assert first == log_of(7)
    assert first != log_of(8)


# Faults.


def test_a_worker_killed_between_child_and_ack_is_replayed_and_then_acked():
    with lines() as tester:
        sent = tester.send("lines", "word")
        killed = tester.kill("upper", when="between child and ack")
        tester.run_until_done()
        assert killed.struck == 1
        assert tester.values("loud") == ["WORD", "WORD", "WORD"]
        assert tester.replays("lines") == {sent: 1}
        assert [failed.cause for failed in tester.failures("lines")] == [Cause.TIMED_OUT]
        assert tester.acked("lines") == [sent]
        assert 30 < tester.now_s < 100


@pytest.mark.parametrize("seed", range(8))
def test_no_ack_overtakes_the_child_that_a_fault_waits_for(seed: int):
    with lines(seed=seed) as tester:
        sent = tester.send("lines", "word")
        tester.kill("upper", when="between child and ack")
        tester.run_until_done()
        assert tester.replays("lines") == {sent: 1}


def test_a_worker_killed_between_ack_and_commit_executes_again():
    with numbers() as tester:
        tester.kill("keep", when="between ack and commit")
        tester.run_until_done()
        assert len(tester.acked("numbers")) == 20


@pytest.mark.parametrize("exactly_once", ["false", "true"])
@pytest.mark.parametrize("fault", ["fail_commit", "lose_answer"])
def test_a_commit_that_fails_costs_nothing(fault: str, exactly_once: str, caplog):
    topology = NUMBERS.replace('emits = ["loud"]', f'emits = ["loud"]\nexactly_once = {exactly_once}')
    with numbers(topology) as tester:
        struck = getattr(tester, fault)("upper")
        tester.run_until_done()
        assert struck.struck == 1
        assert sorted(tester.values("loud"), key=int) == [str(number) for number in range(20)]
        assert tester.failures("numbers") == []
        if fault == "fail_commit":
            actions = {getattr(record, "action", "") for record in caplog.records}
            assert actions & {"commit_postponed", "aborted"}


def test_an_acker_paused_for_a_minute_loses_nothing_and_times_out_nothing():
    with lines(ackers=2) as tester:
        tester.pause("acker", 60)
        for number in range(20):
            tester.send("lines", f"line {number}")
        tester.run_until_done()
        assert len(tester.acked("lines")) == 20
        assert (tester.dead_letters(), tester.failures("lines")) == ([], [])
        assert 5 < tester.now_s < 60  # until the group has given its partitions to the other one


def test_a_record_whose_init_is_lost_times_out_and_is_replayed():
    """Nobody but the ledger knows of such a tree: it waits for half of control_retention_s."""
    times = "orphan_timeout_s = 30\ncontrol_retention_s = 120\n"
    with numbers(times + NUMBERS, spouts={"numbers": TwentyNumbers(3)}) as tester:
        lost = tester.lose("init")
        tester.run_until_done()
        assert lost.struck == 1
        assert {failed.cause for failed in tester.failures("numbers")} == {Cause.TIMED_OUT}
        assert sorted(tester.acked("numbers")) == ["0", "1", "2"]
    with TopologyTester(
        parse_topology(times + LINES), stages={"lines": words}, bolts={"upper": UpperCase, "keep": KeepAll}
    ) as tester:
        tester.send("lines", "first")
        tester.run_until_done()
        lost = tester.lose("init")
        sent = tester.send("lines", "second")
        tester.run_until_done()
        assert lost.struck == 1
        assert tester.replays("lines") == {sent: 1}
        assert len(tester.acked("lines")) == 2


def test_a_lost_ack_is_a_timeout_and_a_repeated_result_changes_nothing():
    with numbers(spouts={"numbers": TwentyNumbers(3)}) as tester:
        tester.lose("ack")
        tester.repeat("result")
        tester.run_until_done()
        assert {failed.cause for failed in tester.failures("numbers")} == {Cause.TIMED_OUT}
        assert sorted(tester.acked("numbers")) == ["0", "1", "2"]


def test_a_repeated_init_never_acks_a_tree_early():
    with lines() as tester:
        tester.repeat("init")
        sent = tester.send("lines", "a b")
        tester.pause("keep", 10)
        tester.run_for(5)
        assert tester.acked("lines") == []
        tester.run_until_done()
        assert len(tester.records("t.ack-init")) == 2
        assert tester.acked("lines") == [sent]


def test_a_zombie_worker_does_no_harm():
    topology = NUMBERS.replace('emits = ["loud"]', 'emits = ["loud"]\nexactly_once = true')
    with numbers(topology, workers={"upper": 2}) as tester:
        tester.pause("upper", 90)
        tester.run_until_done()
        assert tester.now_s > 5
        tester.run_for(120)
        assert sorted(tester.values("loud"), key=int) == [str(number) for number in range(20)]


def test_the_broker_may_be_away():
    with lines() as tester:
        tester.send("lines", "before")
        tester.broker_away(20)
        tester.send("lines", "meanwhile")
        tester.run_until_done()
        assert tester.now_s > 20
        assert sorted(tester.values("loud")) == ["BEFORE", "MEANWHILE"]


def test_a_worker_may_be_cut_off_from_the_broker():
    with numbers() as tester:
        tester.disconnect("upper", 15)
        tester.run_until_done()
        assert len(tester.acked("numbers")) == 20
        assert tester.now_s > 15


def test_clocks_may_be_wrong():
    with lines() as tester:
        before = tester.send("lines", "before")
        tester.step_clock("acker", 3600)
        tester.step_clock("broker", -600)
        after = tester.send("lines", "after")
        assert before.timestamp_ms - after.timestamp_ms == 600_000
        tester.run_until_done()
        assert sorted(tester.values("loud")) == ["AFTER", "BEFORE"]


class FailsOnPoison(BasicBolt):
    def execute(self, tup, emit):
        if tup.value == b"poison":
            raise ValueError("cannot digest this")
        emit(tup.value)


def test_a_poisonous_record_becomes_a_dead_letter_after_its_attempts():
    with lines(bolts={"upper": FailsOnPoison, "keep": KeepAll}) as tester:
        good = tester.send("lines", "good")
        bad = tester.send("lines", "poison")
        tester.run_until_done()
        (letter,) = tester.dead_letters()
        assert (letter.topic, letter.source_partition, letter.source_offset) == bad.place
        assert (letter.attempts, letter.value) == (3, "poison")
        assert "cannot digest this" in letter.reason
        assert tester.replays("lines") == {bad: 2}
        assert tester.acked("lines") == [good]


def test_a_record_is_emitted_again_by_the_replay_command():
    with lines() as tester:
        sent = tester.send("lines", "word", partition=2)
        tester.run_until_done()
        tester.replay("lines", 2, 0, 1)
        tester.run_until(lambda: len(tester.values("loud")) == 2)
        tester.run_until_done()
        assert tester.replays("lines") == {sent: 1}


def test_a_rewound_group_emits_records_again():
    with lines() as tester:
        for number in range(4):
            tester.send("lines", f"line{number}", partition=0)
        tester.run_until_done()
        tester.rewind("lines", 0, 2)
        tester.run_until(lambda: len(tester.values("loud")) == 6)
        tester.run_until_done()
        assert sorted(tester.values("loud")) == ["LINE0", "LINE1", "LINE2", "LINE2", "LINE3", "LINE3"]


# Spark.


@pytest.mark.parametrize("when", ["before a child", "between child and ack", "between ack and commit"])
def test_a_spark_application_killed_in_a_transaction_writes_its_batch_once(when: str):
    with lines() as tester:
        tester.kill("lines", when=when)
        for number in range(10):
            tester.send("lines", f"line{number}")
        tester.run_until_done()
        assert sorted(tester.values("loud")) == [f"LINE{number}" for number in range(10)]
        assert tester.replays("lines") == {}


def test_a_spark_application_killed_after_a_commit_skips_what_is_written():
    with lines() as tester:
        tester.kill("lines", when="after a commit")
        tester.send("lines", "word")
        tester.run_until_done()
        assert tester.values("loud") == ["WORD"]


def test_after_a_lost_checkpoint_a_spout_continues_from_its_group():
    with lines() as tester:
        first = tester.send("lines", "first")
        tester.run_until_done()
        tester.lose_checkpoint("lines")
        second = tester.send("lines", "second")
        tester.run_until_done()
        assert {record.place for record in tester.acked("lines")} == {first.place, second.place}
        assert sorted(tester.values("loud")) == ["FIRST", "SECOND"]


def test_a_stage_rejects_a_row():
    def checked(row):
        yield {"value": row.value, "fail": "not a word" if row.value == b"?" else None}

    with lines(stages={"lines": checked}) as tester:
        tester.send("lines", "?")
        tester.run_until_done()
        (letter,) = tester.dead_letters()
        assert letter.reason == "not a word"


# Errors.


def test_an_error_of_a_bolt_is_raised_in_the_test_with_its_traceback():
    class BreaksInPrepare(KeepAll):
        def prepare(self, context):
            raise RuntimeError("no database")

    with (
        pytest.raises(RuntimeError, match="no database") as raised,
        numbers(bolts={"upper": UpperCase, "keep": BreaksInPrepare}),
    ):
        pass
    assert any(entry.name == "prepare" for entry in raised.traceback)
    assert "keep-0" in raised.value.__notes__[0]


def test_an_error_of_a_stage_is_raised_in_the_test_with_its_traceback():
    def broken(row):
        raise RuntimeError("no such column")

    with lines(stages={"lines": broken}) as tester:
        tester.send("lines", "word")
        with pytest.raises(RuntimeError, match="no such column") as raised:
            tester.run_until_done()
    assert any(entry.name == "broken" for entry in raised.traceback)


def test_a_tick_that_raises_ends_the_worker_and_the_test_unless_it_may_restart():
    class RaisesOnce(UpperByHand):
        ticks = 0

        def tick(self, collector):
            RaisesOnce.ticks += 1
            if RaisesOnce.ticks == 1:
                raise OSError("once")
            super().tick(collector)

    with (
        pytest.raises(OSError, match="once"),
        numbers(bolts={"upper": RaisesOnce, "keep": KeepAll}) as tester,
    ):
        tester.run_until_done()
    RaisesOnce.ticks = 0
    with numbers(bolts={"upper": RaisesOnce, "keep": KeepAll}, restart_on=(OSError,)) as tester:
        tester.run_until_done()
        assert len(tester.acked("numbers")) == 20


def test_a_wait_in_vain_names_what_is_not_done():
    class NeverAcks(Bolt):
        def execute(self, tup, collector):
            pass

    with lines(bolts={"upper": NeverAcks, "keep": KeepAll}) as tester:
        tester.send("lines", "word", partition=3)
        with pytest.raises(TookTooLong) as raised:
            tester.run_until_done(limit_s=20)
        text = str(raised.value)
        assert "the end of all trees did not happen within 20 s of virtual time" in text
        assert "spout lines: 1 pending" in text
        assert "lines/3/0: b'word', replayed 0 times" in text
        assert "bolt upper: has not committed words/" in text
        tester.run_for(1)  # and time goes on


def test_a_fault_that_never_strikes_fails_the_test():
    tester = lines().__enter__()
    tester.kill("upper", when="between child and ack")
    tester.run_for(1)
    with pytest.raises(FaultNeverStruck, match="kill 'upper' between child and ack"):
        tester.__exit__(None, None, None)
    with lines() as tester:
        tester.kill("upper", when="between child and ack").cancel()


UNKNOWN: list[tuple[Callable[[TopologyTester], Any], type[Exception], str]] = [
    (lambda t: t.kill("uper"), UnknownFault, "must be one of: acker, acker-0, upper, upper-0"),
    (lambda t: t.pause("keep-7", 1), UnknownFault, "keep-0"),
    (lambda t: t.kill("upper", when="at night"), UnknownFault, "'between child and ack'"),
    (lambda t: t.lose("inits"), UnknownFault, "must be one of: init, ack, result"),
    (lambda t: t.fail_commit("x"), UnknownFault, "lines-0"),
    (lambda t: t.send("line", "x"), UnknownName, "lines, loud"),
    (lambda t: t.send("lines", "x", partition=4), UnknownName, "has no partition 4"),
    (lambda t: t.records("x"), UnknownName, "must be one of"),
    (lambda t: t.acked("x"), UnknownName, "must be one of: lines"),
    (lambda t: t.handler("acker"), UnknownName, "upper-0, keep-0"),
    (lambda t: t.lose_checkpoint("upper"), UnknownName, "must be one of: lines"),
    (lambda t: t.committed("loud", 0), UnknownName, "lines, upper, keep"),
]


@pytest.mark.parametrize(("call", "error", "text"), UNKNOWN)
def test_unknown_names_are_refused_with_those_that_exist(call, error, text):
    with lines() as tester, pytest.raises(error) as raised:
        call(tester)
    assert text in str(raised.value)


def test_there_is_a_test_of_every_moment():
    """A moment that no test reaches might not exist."""
    assert set(MOMENTS) == {
        "before a child",
        "between child and ack",
        "between ack and commit",
        "between result and commit",
        "before a commit",
        "after a commit",
    }


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", ["upper", "acker", "numbers"])
def test_a_process_killed_at_any_moment_loses_nothing(name: str, when: str):
    reached = {
        "upper": {"before a child", "between child and ack", "between ack and commit", "before a commit"},
        "acker": {"between result and commit", "before a commit"},
        "numbers": {"before a child", "between child and ack", "between ack and commit", "before a commit"},
    }
    spout = TwentyNumbers()
    with numbers(spouts={"numbers": spout}) as tester:
        if name == "numbers":
            tester.kill(name, when=when)
            tester.run_for(5)
            spout.waiting += [m for m in map(str, range(20)) if m not in tester.acked("numbers")]
            fault = tester._faults.armed[0]
        else:
            fault = tester.kill(name, when=when)
        tester.run_until_done()
        assert set(tester.acked("numbers")) == set(map(str, range(20)))
        if when in reached[name]:
            assert fault.struck == 1
        fault.cancel()


def test_parts_that_are_missing_or_unknown_are_named():
    topology: Topology = parse_topology(LINES)
    with pytest.raises(MissingPart, match="stage of spout 'lines'"):
        TopologyTester(topology, bolts={"upper": UpperCase, "keep": KeepAll})
    with pytest.raises(MissingPart, match=r"bolt 'keep': give it by bolts=\{'keep': …\}"):
        TopologyTester(topology, stages={"lines": words}, bolts={"upper": UpperCase})
    with pytest.raises(MissingPart, match="must be one of: upper, keep"):
        lines(bolts={"uper": UpperCase})
    with pytest.raises(MissingPart, match="an instance serves one of them"):
        lines(bolts={"upper": UpperCase(), "keep": KeepAll}, workers={"upper": 2})
    with (
        pytest.raises(MissingPart, match="is not a BasicBolt or Bolt"),
        lines(bolts={"upper": 7, "keep": KeepAll}),
    ):
        pass


def test_a_tester_outside_of_its_block_says_so():
    tester = lines()
    with pytest.raises(NotStarted, match="with TopologyTester"):
        tester.run_until_done()
    with tester:
        pass
    with pytest.raises(NotStarted, match="with TopologyTester"):
        tester.send("lines", "word")
    assert not any(process.tasks for process in tester.kernel.processes)
