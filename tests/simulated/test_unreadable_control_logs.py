"""Ackers whose control log has lost its end, or holds damaged records."""

import pytest

from acktree.core.topology.file import BoltTable, SpoutTable, Topology
from acktree.producers import BasicBolt, Spout
from acktree.testing import TopologyTester

TOPICS = pytest.mark.parametrize("topic", ["t.ack", "t.ack-init"])
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])
TABLE = Topology(
    name="t",
    message_timeout_s=10.0,
    orphan_timeout_s=20.0,
    control_retention_s=120.0,
    spouts={"lines": SpoutTable.model_validate({"topics": ["lines"], "emits": ["in"]})},
    bolts={"last": BoltTable(reads=("in",))},
)


class LastBolt(BasicBolt):
    def execute(self, tup, emit):
        pass


def topology(protocol: str = "classic") -> TopologyTester:
    stages = {"lines": lambda row: [row.value]}
    user = {"group.protocol": protocol}
    return TopologyTester(TABLE, bolts={"last": LastBolt}, stages=stages, user=user, partitions=1, ackers=1)


def send(tester: TopologyTester, count: int) -> None:
    """Send records one by one, so that each has a control record of its own."""
    for number in range(count):
        tester.send("lines", b"%d" % number)
        tester.run_for(0.3)


def messages(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    return [text for record in caplog.records if f"action={action} " in (text := record.getMessage())]


@TOPICS
@PROTOCOLS
def test_an_acker_continues_at_the_end_of_a_truncated_control_log(caplog, protocol, topic):
    with topology(protocol) as tester:
        send(tester, 5)
        tester.run_until_done()
        tester.run_for(3.0)
        log = tester.cluster.log(topic, 0)
        log.truncate(log.end_offset - 3)
        began_s = tester.now_s
        send(tester, 5)
        tester.run_until_done()
        assert tester.now_s - began_s < TABLE.message_timeout_s, "only a replay has helped"
        assert not tester.replays("lines")
    assert len(messages(caplog, "log_end_fell")) == 1


@TOPICS
@PROTOCOLS
def test_an_acker_that_takes_over_above_the_end_of_a_control_log_continues_there(caplog, protocol, topic):
    with topology(protocol) as tester:
        send(tester, 5)
        tester.run_until_done()
        tester.run_for(3.0)
        tester.kill("acker", restart_after_s=60.0)
        log = tester.cluster.log(topic, 0)
        log.truncate(log.end_offset - 3)
        tester.run_for(70.0)
        send(tester, 5)
        tester.run_until_done()
        assert not tester.replays("lines")
    assert messages(caplog, "log_end_fell")


@TOPICS
@PROTOCOLS
def test_an_acker_that_takes_over_reads_what_a_new_leader_has_written_below_its_cut(caplog, protocol, topic):
    """And beyond it: only the leader epoch of the commit shows that."""
    with topology(protocol) as tester:
        send(tester, 5)
        tester.run_until_done()
        tester.run_for(3.0)
        tester.kill("acker", restart_after_s=30.0)
        log = tester.cluster.log(topic, 0)
        log.truncate(log.end_offset - 3, by_new_leader=True)
        send(tester, 12)
        tester.run_until_done()
        assert not tester.replays("lines")
    assert len(messages(caplog, "log_end_fell")) == 1


def test_an_acker_keeps_what_it_has_folded_of_a_truncated_log():
    with topology() as tester:
        tester.kill("last", restart_after_s=5.0)
        send(tester, 4)
        log = tester.cluster.log("t.ack-init", 0)
        tester.run_until(lambda: tester.pending() == 4, what="the emission")
        log.truncate(log.end_offset - 2)
        tester.run_until_done()
        assert not tester.replays("lines")


@PROTOCOLS
def test_a_damaged_ack_is_counted_with_its_coordinates_and_its_root_times_out(caplog, protocol):
    with topology(protocol) as tester:
        send(tester, 3)
        tester.run_until_done()
        tester.kill("acker", restart_after_s=60.0)
        log = tester.cluster.log("t.ack", 0)
        first = log.end_offset
        send(tester, 5)
        log.damage(first)
        tester.run_until_done()
        assert tester.replays("lines")
        assert tester.service("acker").runner.invalid.total == 1
    assert f"action=invalid_record record=t.ack/0@{first} reason='damaged in the log'" in caplog.text


def test_a_record_with_a_damaged_init_is_emitted_again_after_the_control_retention():
    with topology() as tester:
        send(tester, 3)
        tester.run_until_done()
        tester.kill("acker", restart_after_s=20.0)
        log = tester.cluster.log("t.ack-init", 0)
        first = log.end_offset
        send(tester, 5)
        log.damage(first)
        tester.run_until_done()
        assert sum(tester.replays("lines").values()) >= 1
        assert len(tester.acked("lines")) == 8


class FiveMessages(Spout):
    """Emits five messages."""

    def __init__(self):
        self.waiting, self.acked, self.failed = list(range(5)), [], []

    def next_tuple(self, emitter):
        if self.waiting:
            number = self.waiting.pop()
            emitter.emit(str(number), message_id=number)

    def ack(self, message):
        self.acked.append(message.id)

    def fail(self, message, failure):
        self.failed.append(message.id)


def test_a_python_spouts_message_with_a_damaged_result_fails_after_its_retention():
    table = TABLE.model_copy(update={"spouts": {"words": SpoutTable(emits=("in",))}})
    with TopologyTester(
        table, spouts={"words": FiveMessages}, bolts={"last": LastBolt}, partitions=1
    ) as tester:
        log = tester.cluster.log(tester.published.result_topic(0), 0)
        tester.kill("last", restart_after_s=5.0)
        tester.run_for(2.0)
        spout = tester.handler("words")
        tester.pause("words", 10.0)
        tester.run_until(lambda: log.records, what="a result")
        log.damage(log.records[0].offset)
        tester.run_until(lambda: len(spout.acked) + len(spout.failed) == 5, what="all results")
        assert spout.failed
