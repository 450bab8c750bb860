"""Metadata of a simulated cluster, in the classes of confluent's clients."""

from confluent_kafka import KafkaError
from confluent_kafka.admin import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata

from acktree.testing.kafka.cluster import LEADER, Cluster


def list_topics(cluster: Cluster, name: str | None = None) -> ClusterMetadata:
    """Return the metadata of one topic or of all."""
    found = ClusterMetadata()
    broker = BrokerMetadata()
    broker.id, found.controller_id, found.orig_broker_id = LEADER, LEADER, LEADER
    found.brokers[LEADER] = broker
    for wanted in [name] if name is not None else sorted(cluster.topics):
        topic = cluster.topics.get(wanted)
        about = TopicMetadata()
        about.topic = wanted
        if topic is None:
            about.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        for log in topic.partitions if topic else ():
            partition = PartitionMetadata()
            partition.id, partition.leader = log.number, LEADER
            partition.replicas, partition.isrs = [LEADER], [LEADER]
            about.partitions[log.number] = partition
        found.topics[wanted] = about
    return found
