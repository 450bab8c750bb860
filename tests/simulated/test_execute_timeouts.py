"""What exceeds ``execute_timeout_s`` fails, and nothing else: in virtual time, with processes restarted."""

import asyncio
from typing import Any

import pytest

from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.producers import AsyncBolt, BasicBolt, Bolt, Serde, Spout
from acktree.producers.errors import ExecuteHangs
from acktree.testing import TopologyTester

TEXT = """
name = "t"
[spouts.orders]
emits = ["a"]
retry_initial_s = 1
[bolts.store]
reads = ["a"]
emits = ["b"]
exactly_once = {}
[bolts.sink]
reads = ["b"]
"""


class Messages(Spout):
    """Emits each message once, and has the worker emit again what fails."""

    retry = True

    def __init__(self, *messages: str) -> None:
        self.waiting, self.acked = list(messages), []

    def next_tuple(self, emitter):
        if self.waiting:
            emitter.emit(message := self.waiting.pop(0), message, key="one partition")

    def ack(self, message):
        self.acked.append(message.id)


class KeepsValues(BasicBolt):
    def __init__(self) -> None:
        self.values: list[bytes] = []

    def execute(self, tup, emit):
        self.values.append(tup.value)


def run(messages: Messages, make_bolt: Any, sink: KeepsValues, exactly_once: bool = False) -> TopologyTester:
    topology = parse_topology(TEXT.format(str(exactly_once).lower()))
    bolts = {"store": make_bolt, "sink": sink}
    spouts, ends = {"orders": messages}, (ExecuteHangs,)
    return TopologyTester(topology, spouts=spouts, bolts=bolts, ackers=1, restart_on=ends)


@pytest.mark.parametrize("own_s", [0.5, 2.0, 2.9])
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_tuple_that_blocks_the_event_loop_fails_alone(own_s: float, exactly_once: bool):
    blocked: list[bytes] = []

    class Blocks(AsyncBolt):
        execute_timeout_s = 3.0

        async def execute(self, tup, emit):
            if tup.value == b"blocks" and not blocked:
                await asyncio.sleep(0.3)
                blocked.append(tup.value)
                world.sleep(3600)
            await asyncio.sleep(own_s)
            emit(tup.value)

    messages, sink = Messages("1", "2", "3", "blocks", "4"), KeepsValues()
    with run(messages, Blocks, sink, exactly_once) as tester:
        tester.run_until_done()
        assert [failed.record for failed in tester.failures("orders")] == ["blocks"]
    assert sorted(messages.acked) == ["1", "2", "3", "4", "blocks"]


@pytest.mark.parametrize("late_ms", [-500, 0, 50, 300, 900])
def test_an_execute_that_returns_at_its_limit_is_done_once_or_fails(late_ms: int):
    """With ``exactly_once``: its children are committed with its ack, or it fails and nothing of it is."""
    slow: list[bytes] = []

    class Slow(BasicBolt):
        execute_timeout_s = 1.0

        def execute(self, tup, emit):
            emit(tup.value)
            if tup.value == b"slow" and not slow:
                slow.append(tup.value)
                world.sleep(1.0 + late_ms / 1000)

    messages, sink = Messages("1", "2", "slow", "3", "4"), KeepsValues()
    with run(messages, Slow, sink, exactly_once=True) as tester:
        tester.run_until_done()
        assert tester.service("store-0").starts == 1, "its thread has come back"
        values = sorted(tester.values("b"))
        assert (len(tester.failures("orders")), values) in [(0, sorted(messages.acked)), (1, values)]
    assert values == sorted(messages.acked) == ["1", "2", "3", "4", "slow"]


class SlowAtFirst(Serde):
    """Reads as slowly as a schema registry that is away makes it."""

    delay_s = 5.0

    def deserialize(self, value, topic, headers):
        world.sleep(self.delay_s if value == b"1" else 0.0)
        return value


@pytest.mark.parametrize("kind", [BasicBolt, Bolt])
def test_time_spent_reading_a_value_does_not_count_for_execute(kind):
    def execute(self, tup, emit):
        if kind is Bolt:
            emit.ack(tup)

    body = {"reads_as": SlowAtFirst(), "execute_timeout_s": 1.0, "execute": execute}
    messages = Messages("1", "2")
    with run(messages, type("Reads", (kind,), body), KeepsValues()) as tester:
        tester.run_until_done()
        assert tester.failures("orders") == []
        assert tester.service("store-0").starts == 1
    assert sorted(messages.acked) == ["1", "2"]


def test_time_when_the_process_did_not_run_does_not_count_for_execute():
    """As after SIGSTOP, or while its virtual machine is paused."""
    began: list[bytes] = []

    class Quick(BasicBolt):
        execute_timeout_s = 2.0

        def execute(self, tup, emit):
            began.append(tup.value)
            for _ in range(10):
                world.sleep(0.1)

    messages = Messages("1", "2")
    with run(messages, Quick, KeepsValues()) as tester:
        tester.run_until(lambda: began)
        tester.run_for(0.2)
        tester.pause("store-0", 5.0)
        tester.run_until_done()
        assert tester.failures("orders") == []
        assert tester.service("store-0").starts == 1
    assert began == [b"1", b"2"]
