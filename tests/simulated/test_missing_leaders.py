"""A topic without a leader says nothing: neither that its log has ended, nor that something is gone."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from acktree.core.kafka.clients import listed_offset, make_admin
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt
from acktree.testing import TopologyTester

TOPOLOGY = parse_topology("""
name = "t"
message_timeout_s = 10
[spouts.lines]
topics = ["lines"]
emits = ["words"]
[bolts.keep]
reads = ["words"]
""")


class KeepKnown(BasicBolt):
    def execute(self, tup, emit):
        pass


@pytest.mark.parametrize("topic", ["t.ack", "t.ack-init", "words"])
def test_nothing_times_out_while_a_topic_of_its_tree_has_no_leader(topic):
    """The topic is away for ten message timeouts, and all that was sent meanwhile waits for it."""
    stages = {"lines": lambda row: [row.value]}
    with TopologyTester(TOPOLOGY, bolts={"keep": KeepKnown}, stages=stages, partitions=1, ackers=1) as tester:
        tester.send("lines", "first")
        tester.run_until_done()
        tester.cluster.leaderless = {topic}
        for number in range(5):
            tester.send("lines", str(number))
        tester.run_for(100.0)
        tester.cluster.leaderless = set()
        tester.run_until_done()
        assert not tester.failures("lines")


@pytest.mark.virtual
@pytest.mark.parametrize("has_seen", [True, False], ids=["has seen the topic", "has not"])
def test_offsets_of_a_partition_without_a_leader_are_unknown(simulation, kafka, has_seen):
    admin, place = make_admin(kafka, {}), TopicPartition("lines", 0)
    simulation.cluster.create_topic("lines", 1)
    latest = OffsetSpec.latest()
    if has_seen:
        assert listed_offset(admin.list_offsets({place: latest})[place]) == 0
    simulation.cluster.leaderless = {"lines"}
    with pytest.raises(KafkaException) as raised:
        listed_offset(admin.list_offsets({place: latest})[place])
    assert raised.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE


@pytest.mark.virtual
def test_an_offset_that_is_not_answered_in_time_is_an_error_of_kafka(simulation, kafka):
    admin, place = make_admin(kafka, {}), TopicPartition("lines", 0)
    simulation.cluster.create_topic("lines", 1)
    simulation.world.lose_response = lambda _process, call: call == "admin.list_offsets"
    with pytest.raises(KafkaException) as raised:
        listed_offset(admin.list_offsets({place: OffsetSpec.latest()})[place])
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
