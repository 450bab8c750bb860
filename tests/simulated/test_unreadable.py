"""Workers at a position where a tuple topic has nothing to read any more, or damaged records."""

from collections import Counter
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from acktree.core import world
from acktree.core.errors import MissingTopic
from acktree.core.kafka.clients import make_admin
from acktree.core.kafka.log_reader import LogReader
from acktree.core.reports.liveness import Liveness
from acktree.core.topology.file import BoltTable, SpoutTable, Topology
from acktree.producers import BasicBolt, Bolt, Context
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.kafka.inputs import Inputs
from acktree.producers.worker.executing.batch_sizing import Turn
from acktree.producers.worker.executing.bolt_kinds import in_a_thread, make_execution
from acktree.producers.worker.executing.intake import Intake
from acktree.producers.worker.loop import Worker
from acktree.testing import TopologyTester
from acktree.testing.kafka.clients.message import SimulatedMessage
from producers.trees import Net, published
from simulated.test_deleted_groups_and_topics import LIMIT_S, make_topic

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
EXACTLY_ONCE = pytest.mark.parametrize("exactly_once", [False, True])


class CountTuples(BasicBolt):
    executed: ClassVar[Counter[bytes]] = Counter()

    def execute(self, tup, emit):
        CountTuples.executed[tup.value] += 1


class HoldThird(Bolt):
    """Holds every third tuple until it is told."""

    tick_interval_s = 0.1
    is_over = False
    executed: ClassVar[Counter[bytes]] = Counter()

    def prepare(self, context):
        self.held = []

    def execute(self, tup, collector):
        HoldThird.executed[tup.value] += 1
        if tup.offset % 3 or HoldThird.is_over:
            collector.ack(tup)
        else:
            self.held.append(tup)

    def tick(self, collector):
        while HoldThird.is_over and self.held:
            collector.ack(self.held.pop())


@pytest.fixture(autouse=True)
def _nothing_executed():
    CountTuples.executed, HoldThird.executed, HoldThird.is_over = Counter(), Counter(), False


def topology(bolt=CountTuples, exactly_once=False, protocol="classic", **more) -> TopologyTester:
    table = Topology(
        name="t",
        spouts={"lines": SpoutTable.model_validate({"topics": ["lines"], "emits": ["in"]})},
        bolts={"count": BoltTable(reads=("in",), exactly_once=exactly_once)},
    )
    stages = {"lines": lambda row: [row.value]}
    user = {"group.protocol": protocol}
    return TopologyTester(table, bolts={"count": bolt}, stages=stages, user=user, partitions=1, **more)


def send(tester: TopologyTester, numbers: range) -> set[bytes]:
    for number in numbers:
        tester.send("lines", b"%d" % number)
    return {b"%d" % number for number in numbers}


def worker_of(tester: TopologyTester) -> Worker:
    return tester.service("count").runner


@EXACTLY_ONCE
@PROTOCOLS
def test_a_worker_starts_at_the_end_of_a_log_that_ends_below_its_commit(caplog, protocol, exactly_once):
    with topology(exactly_once=exactly_once, protocol=protocol) as tester:
        send(tester, range(25))
        tester.run_until_done()
        tester.kill("count", restart_after_s=20.0)
        log, committed = tester.cluster.log("in", 0), tester.committed("in", 0, "count")
        log.truncate(committed - 5)
        ended_s = tester.now_s + 60.0  # longer than any session
        tester.run_until(lambda: tester.committed("in", 0, "count") == log.end_offset, what="its commit")
        assert tester.now_s < ended_s
        new = send(tester, range(100, 110))
        tester.run_until_done()
        assert set(CountTuples.executed.values()) == {1}
        assert new < set(CountTuples.executed)
    (said,) = [record for record in caplog.records if getattr(record, "action", "") == "log_end_fell"]
    assert f"in[0] ends at offset {committed - 5}, below {committed}" in said.getMessage()


@EXACTLY_ONCE
@PROTOCOLS
def test_a_worker_executes_what_a_new_leader_has_written_below_its_commit(caplog, protocol, exactly_once):
    """While nobody runs, and beyond the commit: only the leader epoch of the commit shows it."""
    with topology(exactly_once=exactly_once, protocol=protocol) as tester:
        send(tester, range(25))
        tester.run_until_done()
        tester.kill("count", restart_after_s=20.0)
        log, committed = tester.cluster.log("in", 0), tester.committed("in", 0, "count")
        log.truncate(committed - 5, by_new_leader=True)
        new = send(tester, range(100, 140))
        tester.run_until_done()
        assert log.end_offset > committed
        assert {CountTuples.executed[each] for each in new} == {1}
    (said,) = [record for record in caplog.records if getattr(record, "action", "") == "log_end_fell"]
    assert f"in[0] ends at offset {committed - 5}, below {committed}" in said.getMessage()


@EXACTLY_ONCE
@PROTOCOLS
def test_a_log_truncated_below_a_worker_is_read_from_its_new_end(protocol, exactly_once):
    with topology(exactly_once=exactly_once, protocol=protocol) as tester:
        send(tester, range(25))
        tester.run_until_done()
        log = tester.cluster.log("in", 0)
        log.truncate(log.end_offset - 5)
        tester.run_for(2.0)
        new = send(tester, range(100, 110))
        tester.run_until_done()
        assert set(CountTuples.executed.values()) == {1}
        assert new < set(CountTuples.executed)
        assert "below" in worker_of(tester).reports.newest[0].values["last_error"]


@PROTOCOLS
def test_a_worker_that_reads_its_inputs_again_forgets_no_unreadable_partition(protocol):
    """A rebalance has lost its transaction just when the end of a log is lost."""
    with topology(exactly_once=True, protocol=protocol) as tester:
        send(tester, range(25))
        tester.run_until_done()
        log = tester.cluster.log("in", 0)
        worker_of(tester)._commits.must_rewind = True
        log.truncate(log.end_offset - 5)
        tester.run_for(2.0)
        new = send(tester, range(100, 110))
        tester.run_until_done()
        assert new < set(CountTuples.executed)


@PROTOCOLS
def test_what_an_aborted_transaction_has_read_of_a_truncated_log_is_read_again(protocol, monkeypatch):
    """The client keeps its position in a partition that it has given up, and refuses to seek."""
    monkeypatch.setattr(ExactlyOnce, "commit_interval_s", 5.0)
    with topology(exactly_once=True, protocol=protocol) as tester:
        send(tester, range(25))
        tester.run_until_done()
        values = send(tester, range(100, 110))
        tester.run_until(lambda: values <= set(CountTuples.executed), what="the execution")
        log, committed = tester.cluster.log("in", 0), tester.committed("in", 0, "count")
        log.truncate(log.end_offset - 5)
        worker_of(tester).output.must_abort = True
        tester.run_for(8.0)  # less than the message timeout
        left = {record.value for record in log.records if record.offset >= committed and record.value}
        assert len(left & values) >= 4
        assert {CountTuples.executed[value] for value in left & values} == {2}


@PROTOCOLS
@EXACTLY_ONCE
def test_a_partition_that_was_unreadable_is_not_committed_back_when_another_one_is(protocol, exactly_once):
    """To go on in one partition a worker of the classic protocol assigns all, and knows no position then."""
    with topology(exactly_once=exactly_once, protocol=protocol, ackers=0) as tester:
        tester.cluster.grow_topic("in", 2)
        one, other = (tester.cluster.log("in", partition) for partition in range(2))
        for log in (one, other):
            for _ in range(3):
                log.append(None, b"first")
        tester.run_until(lambda: CountTuples.executed.total() == 6, what="all")
        tester.run_for(2.0)
        one.truncate(1)
        tester.run_for(2.0)
        for _ in range(3):
            one.append(None, b"more")
        tester.run_until(lambda: CountTuples.executed.total() == 9, what="more")
        tester.run_for(2.0)
        assert tester.committed("in", 0, "count") == 4
        other.truncate(1)
        tester.run_for(5.0)
        assert tester.committed("in", 0, "count") == 4
        assert CountTuples.executed.total() == 9


@EXACTLY_ONCE
def test_tuples_in_hand_of_a_truncated_log_are_done_or_executed_again(exactly_once):
    with topology(HoldThird, exactly_once) as tester:
        send(tester, range(20))
        tester.run_until(lambda: len(HoldThird.executed) == 20, what="the execution")
        tester.run_for(2.0)
        log = tester.cluster.log("in", 0)
        log.truncate(log.end_offset // 2)
        new = send(tester, range(100, 120))
        HoldThird.is_over = True
        tester.run_until_done()
        assert new < set(HoldThird.executed)
        assert len(tester.acked("lines")) == 40


@EXACTLY_ONCE
@PROTOCOLS
def test_only_a_damaged_record_is_rejected_and_with_its_coordinates(caplog, protocol, exactly_once):
    with topology(exactly_once=exactly_once, protocol=protocol) as tester:
        tester.kill("count", restart_after_s=10.0)
        values = send(tester, range(10))
        log = tester.cluster.log("in", 0)
        tester.run_until(lambda: log.end_offset > 10, what="the tuples")
        damaged = [record.offset for record in log.records if record.value in (b"4", b"5", b"9")]
        for offset in damaged:
            log.damage(offset)
        tester.run_until_done()
        assert set(CountTuples.executed) == values
        assert worker_of(tester).counters["invalid"] >= 3
        assert len(tester.acked("lines")) == 10
    said = [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "invalid_record"]
    assert f"records in[0]@{damaged[0]} to {damaged[1]} are damaged in the log" in said


def test_tuples_in_hand_below_a_damaged_record_stay_in_hand():
    with topology(HoldThird) as tester:
        tester.kill("count", restart_after_s=10.0)
        send(tester, range(10))
        log = tester.cluster.log("in", 0)
        tester.run_until(lambda: log.end_offset > 10, what="the tuples")
        log.damage(next(record.offset for record in log.records if record.value == b"5"))
        tester.run_until(lambda: len(HoldThird.executed) == 9, what="the execution")
        HoldThird.is_over = True
        tester.run_for(5.0)
        assert set(HoldThird.executed.values()) == {1}
        tester.run_until_done()


def test_records_that_were_removed_before_they_were_read_are_named(caplog):
    with topology() as tester:
        send(tester, range(3))
        tester.run_until_done()
        tester.run_for(1.0)
        tester.kill("count", restart_after_s=10.0)
        send(tester, range(100, 110))
        log, committed = tester.cluster.log("in", 0), tester.committed("in", 0, "count")
        tester.run_until(lambda: log.end_offset > committed + 10, what="the tuples")
        log.delete_before(committed + 4)
        tester.run_until_done()
    said = [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "records_lost"]
    assert said == [f"records in[0]@{committed} to {committed + 3} were removed before they were read"]


class Assigned:
    """A consumer that remembers what it was told to read."""

    def __init__(self):
        self.offsets, self.subscriptions = [], []

    def assign(self, places):
        self.offsets.append([place.offset for place in places])

    def subscribe(self, topics, **_):
        self.subscriptions.append(topics)

    def consume(self, *_):
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return [SimulatedMessage(topic, 0, None, error=error) for topic in self.subscriptions[-1]]


def inputs_of(consumer, bootstrap="broker:9092", committed=0):
    reader = LogReader(consumer, bootstrap, "g", {}, is_member=True)
    inputs = Inputs(reader, bootstrap, lambda places: [TopicPartition("in", 0, committed)])
    return reader, inputs


def test_a_log_that_has_fallen_is_read_from_its_end_even_if_that_is_not_committed_yet():
    consumer = Assigned()
    reader, inputs = inputs_of(consumer, committed=500)
    reader.begin({("in", 0): 500})
    inputs.begin_fallen(("in", 0), 480)
    inputs.rewind()
    inputs.mark_committed([TopicPartition("in", 0, 485)])
    inputs.rewind()
    assert consumer.offsets == [[500], [480], [480], [500]]


@pytest.mark.simulated
def test_a_worker_waits_for_an_input_topic_that_was_just_created(kafka: str, unique: str) -> None:
    consumer = Assigned()
    _, inputs = inputs_of(consumer, kafka)
    inputs.subscribe([unique], print, print, print)
    world.start_thread(lambda: (world.sleep(1.0), make_topic(make_admin(kafka, {}), unique)), "operator")
    began_s = world.monotonic_s()
    assert not inputs.read(0)
    assert world.monotonic_s() - began_s < LIMIT_S
    assert consumer.subscriptions == [[unique]] * 2


@pytest.mark.simulated
def test_a_worker_ends_if_an_input_topic_does_not_exist(kafka: str, unique: str) -> None:
    _, inputs = inputs_of(Assigned(), kafka)
    inputs.subscribe([unique], print, print, print)
    with pytest.raises(MissingTopic, match="acktree topology apply"):
        inputs.read(0)


@pytest.mark.simulated
def test_waiting_tuples_of_a_truncated_log_are_not_executed(kafka: str):
    """Their offsets will be those of other records, and a commit of them would pass those."""
    net, executed, begun, goes_on = Net(published(copy=(["a"], []))), [], world.event(), world.event()

    class WaitsInExecute(BasicBolt):
        def execute(self, tup, emit):
            executed.append(tup.partition)
            begun.set()
            goes_on.wait()

    collector, turn, waiting = net.make_collector("copy"), Turn(), list[Message]()
    made = make_execution(WaitsInExecute(), collector, Intake("copy", net.history), lambda *_: {}, turn)
    execution = in_a_thread(made, collector, turn, waiting.extend, Liveness())
    execution.prepare(Context(net.history.latest, "copy", "copy@test"))
    with collector.guard:
        execution.run([Message(topic="a", partition=partition, offset=8, value=b"") for partition in (0, 1)])
    begun.wait()
    with collector.guard:
        assert not execution.drop([], [("a", 1)])
    assert [record.partition() for record in waiting] == [1]
    goes_on.set()
    execution.finish([])
    execution.cleanup()
    world.sleep(0.1)  # its thread ends
    assert executed == [0]
