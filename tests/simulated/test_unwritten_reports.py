"""Reports that the broker does not take, because T.stats has no leader, hold nothing else up."""

import pytest

from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt, Spout
from acktree.testing import TopologyTester

TOPOLOGY = """
name = "t"
message_timeout_s = 30.0
[spouts.lines]
topics = ["lines"]
emits = ["in"]
[spouts.numbers]
emits = ["in"]
[bolts.first]
reads = ["in"]
emits = ["between"]
exactly_once = {exactly_once}
[bolts.last]
reads = ["between"]
"""
RECORDS = 20


class OneASecond(Spout):
    """Emits a number now and then, for as long as reports wait."""

    def prepare(self, context):
        self.emitted, self.acked, self.next_s = 0, [], 0.0

    def next_tuple(self, emitter):
        if self.emitted < RECORDS and world.monotonic_s() >= self.next_s:
            self.emitted, self.next_s = self.emitted + 1, world.monotonic_s() + 1.0
            emitter.emit(str(self.emitted), message_id=self.emitted)

    def ack(self, message):
        self.acked.append(message.id)


class First(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value, topic="between")


class Last(BasicBolt):
    def execute(self, tup, emit):
        pass


@pytest.mark.parametrize("exactly_once", ["false", "true"], ids=["at-least-once", "exactly-once"])
def test_every_process_commits_while_reports_cannot_be_written(exactly_once):
    """The spouts' records are acked and the offsets of bolts and ackers committed."""
    bolts, stages = {"first": First, "last": Last}, {"lines": lambda row: [row.value]}
    with TopologyTester(
        parse_topology(TOPOLOGY.format(exactly_once=exactly_once)),
        bolts=bolts,
        stages=stages,
        spouts={"numbers": OneASecond},
        partitions=1,
        ackers=1,
    ) as tester:
        tester.run_for(5.0)
        tester.cluster.leaderless = {"t.stats"}
        written = len(tester.cluster.log("t.stats", 0).records)
        tester.run_for(5.0)
        for number in range(RECORDS):
            tester.send("lines", str(number))
        tester.run_for(20.0)
        assert len(tester.acked("lines")) == RECORDS
        assert len(tester.handler("numbers").acked) == RECORDS
        for group, topic in (("t.first", "in"), ("t.last", "between"), ("t.acker", "t.ack")):
            log = tester.cluster.log(topic, 0)
            assert tester.cluster.group(group).offsets[topic, 0].offset > log.last_committed, group
        assert len(tester.cluster.log("t.stats", 0).records) == written
        tester.cluster.leaderless = set()
        tester.run_for(5.0)
        assert len(tester.cluster.log("t.stats", 0).records) > written
