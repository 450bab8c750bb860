"""Returns the metadata of a simulated cluster, in the classes of confluent's clients."""

from confluent_kafka import KafkaError, Node, TopicPartitionInfo
from confluent_kafka.admin import BrokerMetadata, ClusterMetadata, PartitionMetadata, TopicMetadata

from acktree.testing.kafka.broker.cluster import LEADER, Cluster
from acktree.testing.kafka.broker.log import Topic


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
            if cluster.is_leaderless(wanted, log.number):
                partition.leader = -1
            partition.replicas, partition.isrs = [LEADER], [LEADER]
            about.partitions[log.number] = partition
        found.topics[wanted] = about
    return found


def partition_infos(topic: Topic) -> list[TopicPartitionInfo]:
    """Return what an admin client says of a topic's partitions: one broker has all of them."""
    node = Node(LEADER, "simulated", 9092)
    return [TopicPartitionInfo(log.number, node, [node], [node]) for log in topic.partitions]
