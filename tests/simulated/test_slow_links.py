"""A slow link to the broker: output is cut into transactions that pass, and what never passes fails."""

import logging
from typing import Any

import pytest

from acktree.core.topology.file import parse_topology
from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt, Reject
from acktree.testing import TopologyTester

TEXT = """
name = "t"
ackers = {ackers}
message_timeout_s = 120
[spouts.split]
topics = ["lines"]
emits = ["words"]
max_attempts = 2
retry_initial_s = 1
"""
WORD = b"x" * 500_000
LINK = 1_000_000
"""Bytes a second."""
ACKERS = pytest.mark.parametrize("ackers", [0, 2])


COUNT = """
[bolts.count]
reads = ["words"]
"""


class AcksWords(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        pass


class RepeatsWords(BasicBolt):
    """Emits as many words as a line says."""

    def execute(self, tup: Any, emit: Any) -> None:
        for _ in range(int(tup.value)):
            emit(WORD)


class RepeatsBatches(BatchBolt):
    def __init__(self) -> None:
        self.counts: list[int] = []

    def execute(self, tuples: Any, collector: Any) -> None:
        self.counts.append(len(tuples))
        for tup in tuples:
            for _ in range(int(tup.value)):
                collector.emit(WORD, anchors=tup)


def running(stage: Any, ackers: int = 2) -> TopologyTester:
    topology = parse_topology(TEXT.format(ackers=ackers) + (COUNT if ackers else ""))
    bolts = {"count": AcksWords} if ackers else {}
    t = TopologyTester(topology, spouts={"split": stage}, bolts=bolts, partitions=2)
    t.world.bytes_per_s = LINK
    return t


@ACKERS
def test_output_that_never_passes_fails_its_record_alone(ackers: int) -> None:
    with running(RepeatsWords, ackers) as t:
        t.send("lines", "60", partition=0)
        for partition in (0, 1):
            for _ in range(5):
                t.send("lines", "1", partition=partition)
        t.run_until_done(limit_s=120)
        assert len(t.values("words")) == 10
        assert [t.committed("lines", partition) for partition in (0, 1)] == [6, 5]
        (letter,) = t.dead_letters()
        assert "its output of 30.0 MB did not pass within 10 s (" in letter.reason


@ACKERS
@pytest.mark.parametrize("stage", [RepeatsWords, RepeatsBatches])
def test_much_output_is_written_in_transactions_that_pass(
    stage: Any, ackers: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(stage, ackers) as t:
        for number in range(20):
            t.send("lines", "4", partition=number % 2)
        t.run_until_done(limit_s=200)
        assert len(t.values("words")) == 80
        assert not t.dead_letters()
    assert "no Kafka broker answers" not in caplog.text


AWAY = pytest.mark.parametrize("when_s", [0.1, 0.4, 0.7, 1.0, 1.5, 2.0])


def check_an_outage(t: TopologyTester, when_s: float, topic: str) -> None:
    """Let the broker go away while much output is on its way, and expect all of it, and no dead letter."""
    t.world.bytes_per_s = 10 * LINK
    t.run_for(5)
    for number in range(4):
        t.send("lines", "10", partition=number % 2)
    t.run_for(when_s)
    t.broker_away(45)
    t.run_until_done()
    assert len(t.values(topic)) == 40
    assert not t.dead_letters()


@AWAY
def test_a_broker_that_is_away_fails_no_record(when_s: float) -> None:
    with running(RepeatsWords) as t:
        check_an_outage(t, when_s, "words")


def test_a_partition_of_tuples_without_a_leader_fails_no_record() -> None:
    with running(RepeatsWords) as t:
        t.world.bytes_per_s = 10 * LINK
        t.run_for(5)
        t.cluster.leaderless = {("words", 0)}
        for number in range(4):
            t.send("lines", "10", partition=number % 2)
        t.run_for(150)
        assert not t.dead_letters()
        t.cluster.leaderless = set()
        t.run_until_done()
        assert len(t.values("words")) == 40


class RefusesLines(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        raise Reject("never")


def test_dead_letters_are_written_in_transactions_that_pass() -> None:
    with running(RefusesLines) as t:
        for number in range(60):
            t.send("lines", WORD, partition=number % 2)
        t.run_until_done(limit_s=200)
        assert len(t.dead_letters()) == 60


BOLT = """
name = "t"
ackers = 2
message_timeout_s = 120
[spouts.split]
topics = ["lines"]
emits = ["words"]
max_attempts = 2
retry_initial_s = 1
[bolts.repeat]
reads = ["words"]
emits = ["out"]
exactly_once = true
"""


class CopiesCounts(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        emit(tup.value)


class RepeatsByHand(Bolt):
    def execute(self, tup: Any, collector: Any) -> None:
        for _ in range(int(tup.value)):
            collector.emit(WORD, anchors=tup)
        collector.ack(tup)


class RepeatsAsync(AsyncBolt):
    async def execute(self, tup: Any, emit: Any) -> None:
        for _ in range(int(tup.value)):
            emit(WORD)


KINDS = pytest.mark.parametrize("bolt", [RepeatsWords, RepeatsByHand, RepeatsBatches, RepeatsAsync])


def with_bolt(bolt: Any) -> TopologyTester:
    t = TopologyTester(
        parse_topology(BOLT), spouts={"split": CopiesCounts}, bolts={"repeat": bolt}, partitions=2
    )
    t.world.bytes_per_s = LINK
    return t


@KINDS
def test_output_of_a_bolt_that_never_passes_fails_its_tuple_alone(bolt: Any) -> None:
    with with_bolt(bolt) as t:
        t.send("lines", "60", partition=0)
        for partition in (0, 1):
            for _ in range(5):
                t.send("lines", "1", partition=partition)
        t.run_until_done(limit_s=300)
        assert len(t.values("out")) == 10
        assert [t.committed("lines", partition) for partition in (0, 1)] == [6, 5]
        (letter,) = t.dead_letters()
        assert "its output of 30.0 MB does not pass within" in letter.reason


@KINDS
def test_much_output_of_a_bolt_is_written_in_transactions_that_pass(bolt: Any) -> None:
    with with_bolt(bolt) as t:
        for number in range(20):
            t.send("lines", "4", partition=number % 2)
        t.run_until_done(limit_s=300)
        assert len(t.values("out")) == 80
        assert not t.dead_letters()


@AWAY
def test_a_broker_that_is_away_fails_no_tuple_of_a_bolt(when_s: float) -> None:
    with with_bolt(RepeatsWords) as t:
        check_an_outage(t, when_s, "out")


def test_output_of_a_bolt_passes_once_the_link_is_faster() -> None:
    with with_bolt(RepeatsWords) as t:
        t.send("lines", "60", partition=0)
        t.run_until(lambda: t.committed("lines", 0) == 1, limit_s=300)
        assert len(t.dead_letters()) == 1
        t.world.bytes_per_s = 100 * LINK
        t.run_for(70)
        t.send("lines", "60", partition=0)
        t.run_until_done(limit_s=300)
        assert len(t.values("out")) == 60


def test_a_bolt_reads_many_tuples_at_a_time_again_once_their_output_is_small() -> None:
    bolt = RepeatsBatches()
    with with_bolt(bolt) as t:
        for number in range(20):
            t.send("lines", "4", partition=number % 2)
        t.run_until_done(limit_s=300)
        bolt.counts.clear()
        for number in range(20):
            t.send("lines", "0", partition=number % 2)
            t.run_for(0.5)
        for number in range(1_000):
            t.send("lines", "0", partition=number % 2)
        t.run_until_done(limit_s=300)
        assert max(bolt.counts) >= 100
