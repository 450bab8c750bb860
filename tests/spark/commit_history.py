"""What was committed for a group, one commit after another, as the broker's own topic of offsets has it."""

from confluent_kafka import Consumer, TopicPartition

from deadlines import stretched

OFFSETS_TOPIC = "__consumer_offsets"
DEADLINE_S = stretched(30)


def times_committed(bootstrap: str, group: str, metadata: str) -> int:
    """Return how often an offset with this metadata was committed for a group, lately enough."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{group}.look",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
    )
    partitions = len(consumer.list_topics(OFFSETS_TOPIC, DEADLINE_S).topics[OFFSETS_TOPIC].partitions)
    consumer.assign([TopicPartition(OFFSETS_TOPIC, abs(_java_hash(group)) % partitions, 0)])
    name = len(group).to_bytes(2, "big") + group.encode()
    found = 0
    while (record := consumer.poll(DEADLINE_S)) is not None and record.error() is None:
        is_ours = (record.key() or b"")[2:].startswith(name)
        found += is_ours and metadata.encode() in (record.value() or b"")
    assert record is not None, "the broker does not answer"
    consumer.close()
    return found


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = value * 31 + ord(character) & 0xFFFFFFFF
    return value - (value >> 31 << 32)
