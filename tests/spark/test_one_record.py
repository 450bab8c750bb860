"""One record by its coordinates: there, gone for good, or not known."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.schemas.client_settings import consumer_settings
from acktree.schemas.clients import make_consumer
from acktree.schemas.errors import BrokerUnreachable
from acktree.spark.tasks.reading.one_record import read_record

RECORDS = 5


@pytest.fixture
def topic(bootstrap: str, unique: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(unique, 1)])[unique].result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(unique, str(number))
    assert producer.flush(30) == 0
    return unique


@pytest.fixture(params=["error", "earliest"])
def read(
    bootstrap: str, topic: str, request: pytest.FixtureRequest
) -> Iterator[Callable[[int], bytes | None]]:
    """Read by the reader of dead letters, and by the one of replay commands."""
    reset = {"auto.offset.reset": request.param}
    consumer: Consumer = make_consumer(
        {**consumer_settings(bootstrap, f"{topic}.group", {}, enable_partition_eof=True), **reset}
    )

    def value(offset: int) -> bytes | None:
        message = read_record(consumer, TopicPartition(topic, 0, offset), bootstrap)
        return message.value() if message is not None else None

    yield value
    consumer.close()


def test_a_record_is_read_at_its_offset_and_an_expired_one_is_missing(
    bootstrap: str, topic: str, read: Callable[[int], bytes | None]
) -> None:
    assert read(3) == b"3"
    place = TopicPartition(topic, 0, 3)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([place])[place].result()
    assert read(2) is None
    assert read(4) == b"4"


@pytest.mark.parametrize("behind", [0, 2])
def test_nothing_is_known_of_a_record_beyond_the_end_of_the_log(
    read: Callable[[int], bytes | None], behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that lags behind the one before it looks like this, for a moment."""
    monkeypatch.setattr("acktree.spark.tasks.reading.one_record.BROKER_TIMEOUT_S", 2.0)
    with pytest.raises(BrokerUnreachable, match="the log ends before it"):
        read(RECORDS + behind)
