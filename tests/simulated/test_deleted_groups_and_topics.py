"""What an admin client says of a group or a topic that is gone; the real one says the same."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from acktree.core import world
from acktree.core.kafka.clients import make_admin, make_consumer

pytestmark = pytest.mark.simulated
LIMIT_S = 30


def until(holds: Callable[[], Any]) -> None:
    deadline_s = world.monotonic_s() + LIMIT_S
    while not holds():
        assert world.monotonic_s() < deadline_s
        world.sleep(0.05)


def make_topic(admin: AdminClient, topic: str) -> None:
    world.wait_for(admin.create_topics([NewTopic(topic, 1)])[topic], LIMIT_S)
    until(lambda: topic in admin.list_topics(timeout=LIMIT_S).topics)


def delete_topic(admin: AdminClient, topic: str) -> None:
    world.wait_for(admin.delete_topics([topic])[topic], LIMIT_S)
    until(lambda: topic not in admin.list_topics(timeout=LIMIT_S).topics)


def log_end(admin: AdminClient, topic: str) -> int:
    """Return where partition 0 ends, or the code of the error."""
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    (answer,) = admin.list_offsets({TopicPartition(topic, 0): latest}).values()
    try:
        return int(world.wait_for(answer, LIMIT_S).offset)
    except KafkaException as error:
        return int(error.args[0].code())


def delete_group(admin: AdminClient, group: str) -> int | None:
    """Delete a group; return the code of the error, None for none."""
    try:
        world.wait_for(admin.delete_consumer_groups([group])[group], LIMIT_S)
    except KafkaException as error:
        return int(error.args[0].code())
    return None


def test_a_deleted_group_has_committed_nothing_and_cannot_be_deleted_again(kafka: str, unique: str) -> None:
    admin = make_admin(kafka, {})
    make_topic(admin, unique)
    assert delete_group(admin, unique) == KafkaError.GROUP_ID_NOT_FOUND
    consumer = make_consumer({"bootstrap.servers": kafka, "group.id": unique})
    consumer.commit(offsets=[TopicPartition(unique, 0, 7)], asynchronous=False)
    assert delete_group(admin, unique) is None
    (place,) = consumer.committed([TopicPartition(unique, 0)], timeout=LIMIT_S)
    assert place.offset < 0
    consumer.close()
    assert delete_group(admin, unique) == KafkaError.GROUP_ID_NOT_FOUND


def test_a_group_with_a_member_cannot_be_deleted(kafka: str, unique: str) -> None:
    admin = make_admin(kafka, {})
    make_topic(admin, unique)
    member = make_consumer({"bootstrap.servers": kafka, "group.id": unique})
    member.subscribe([unique])
    until(lambda: member.poll(0.2) is None and member.assignment())
    assert delete_group(admin, unique) == KafkaError.NON_EMPTY_GROUP
    member.close()


def test_a_client_that_has_seen_a_topic_still_asks_for_it_by_its_leader(kafka: str, unique: str) -> None:
    boss, client, stranger = (make_admin(kafka, {}) for _ in range(3))
    make_topic(boss, unique)
    assert log_end(client, unique) == 0
    delete_topic(boss, unique)
    client.list_topics(timeout=LIMIT_S)
    assert log_end(client, unique) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert log_end(stranger, unique) == KafkaError._NOENT


def test_a_client_that_has_asked_for_a_deleted_topic_by_name_forgets_its_leader(
    kafka: str, unique: str
) -> None:
    boss, client = make_admin(kafka, {}), make_admin(kafka, {})
    make_topic(boss, unique)
    assert log_end(client, unique) == 0
    delete_topic(boss, unique)
    with pytest.raises(KafkaException):
        world.wait_for(client.describe_topics(TopicCollection([unique]))[unique], LIMIT_S)
    assert log_end(client, unique) == KafkaError._NOENT
