"""Settings of our clients: a promise stands where nobody says otherwise, and only our own code may."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as PlaceOfAnother
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.core.kafka.clients import (
    make_consumer,
    make_producer,
    metadata_of,
    retry_until_ready,
    wait_until_delivered,
)
from acktree.core.kafka.outages import ClientLog
from acktree.core.kafka.settings import ANY_SIZE, consumer_settings, producer_settings
from acktree.producers.ledger.task import SourceSlot
from acktree.producers.spouts.driver.group_offsets import CommittedOffset, GroupOffsets
from acktree.producers.spouts.outside_commit import commit_offsets


def test_a_group_without_a_commit_starts_at_the_beginning_unless_code_asks_otherwise():
    def reset_of(user: dict[str, str], **ours: str) -> str:
        return consumer_settings("there", "g", user, **ours)["auto.offset.reset"]

    agreeing = {"auto.offset.reset": "earliest"}
    assert (reset_of({}), reset_of(agreeing)) == ("earliest", "earliest")
    assert reset_of(agreeing, auto_offset_reset="error") == "error"


def test_what_waits_in_a_client_is_bounded_in_bytes_and_one_record_always_fits():
    fetched = consumer_settings("there", "g", {})["queued.max.messages.kbytes"]
    queued = producer_settings("there", {})["queue.buffering.max.kbytes"]
    assert fetched + queued < 50 << 10
    largest = producer_settings("there", ANY_SIZE)["queue.buffering.max.kbytes"]
    assert largest << 10 > int(ANY_SIZE["message.max.bytes"])
    assert make_producer(producer_settings("there:1", ANY_SIZE)) is not None
    chosen = {"queued.max.messages.kbytes": "9", "queue.buffering.max.kbytes": "9"}
    assert consumer_settings("there", "g", chosen)["queued.max.messages.kbytes"] == "9"
    assert producer_settings("there", chosen)["queue.buffering.max.kbytes"] == "9"


def test_commit_metadata_of_another_client_is_recognised_as_foreign(bootstrap: str, unique: str):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(unique, 1)])[unique].result()
    ours = make_consumer(consumer_settings(bootstrap, unique, {}))
    texts = [f"{number}|".ljust(number, "x") for number in range(2, 120)]
    read = asyncio.run(read_each(bootstrap, unique, texts, ours))
    ours.close()
    for text, found in zip(texts, read, strict=True):
        assert found.startswith(text) or found == "\ufffd"


async def read_each(bootstrap: str, topic: str, texts: list[str], ours: Consumer) -> list[str]:
    """Commit each text by aiokafka, which leaves its end out; return what librdkafka makes of it."""
    place, read = PlaceOfAnother(topic, 0), []
    stranger = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False)
    await stranger.start()
    stranger.assign([place])
    for text in texts:
        await stranger.commit({place: (7, text)})
        (found,) = ours.committed([TopicPartition(topic, 0)], 10)
        read.append(metadata_of(found))
    await stranger.stop()
    return read


def answers(*codes: int):
    """Return a question that is answered with these errors first, then with "done"."""
    left = list(codes)

    def ask() -> str:
        if left:
            raise KafkaException(KafkaError(left.pop(0)))
        return "done"

    return ask


def test_a_call_is_retried_while_the_broker_loads_its_groups():
    loading, moved = KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR
    assert retry_until_ready(answers(loading, moved, loading)) == "done"
    assert retry_until_ready(answers(KafkaError._TIMED_OUT), wait_if_away=True) == "done"


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TRANSPORT])
def test_an_error_that_cannot_be_retried_is_raised_immediately(code):
    ask = answers(code)
    with pytest.raises(KafkaException):
        retry_until_ready(ask)
    assert ask() == "done"


def test_a_broker_that_never_becomes_ready_is_an_error(monkeypatch):
    monkeypatch.setattr("acktree.core.kafka.clients.READY_TIMEOUT_S", 0.0)
    with pytest.raises(KafkaException):
        retry_until_ready(answers(*[KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * 10))


def test_a_commit_from_outside_of_a_group_waits_for_its_coordinator():
    commit = answers(KafkaError._WAIT_COORD, KafkaError.NOT_COORDINATOR)
    offsets = [TopicPartition("lines", 0, 3)]
    commit_offsets(cast(Any, Committing(lambda: [commit()] and offsets)), offsets, "g", "there")
    assert commit() == "done"


def test_a_commit_that_one_partition_refuses_is_repeated_whole():
    place = TopicPartition("lines", 0, 3)
    moved = SimpleNamespace(error=KafkaError(KafkaError.NOT_COORDINATOR))
    replies = [[place, moved], [place, place]]
    commit_offsets(cast(Any, Committing(lambda: replies.pop(0))), [place, place], "g", "there")
    assert not replies


@pytest.mark.parametrize("is_partition", [False, True], ids=["the request", "a partition"])
def test_what_a_spouts_group_has_committed_is_asked_again_once_its_coordinator_is_ready(is_partition: bool):
    """A driver asks twice a second, and another broker may just have become the coordinator."""
    committed = answers(KafkaError.NOT_COORDINATOR, KafkaError._WAIT_COORD)

    def ask(asked: list[TopicPartition], timeout: float) -> list[Any]:
        try:
            committed()
        except KafkaException as error:
            if not is_partition:
                raise
            return [SimpleNamespace(error=error.args[0])]
        return [TopicPartition("lines", 0, 3)]

    offsets = GroupOffsets(cast(Any, SimpleNamespace(committed=ask)), "g", "there")
    found = offsets.fetch([SourceSlot(7, "lines", 0, "id")], 1)
    assert found == {7: CommittedOffset(3, None)}


class Committing:
    """A client of the broker that answers commits as it is given."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> Any:
        assert offsets
        assert not asynchronous
        return self._answer()

    def poll(self, _wait_s: float) -> None:
        """Return no event."""


class FatalProducer:
    """A client whose flush ends as librdkafka's does when ``callbacks`` have met its fatal error."""

    def __init__(self, callbacks: int) -> None:
        self._callbacks = callbacks

    def flush(self, _timeout_s: float) -> int:
        error: BaseException = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))
        for number in range(self._callbacks):
            met = SystemError(f"callback {number} returned a result with an exception set")
            met.__cause__, error = error, met
        raise error


@pytest.mark.parametrize("callbacks", [0, 1, 2, 3])
def test_a_fatal_error_is_raised_however_many_callbacks_have_met_it(callbacks: int):
    with pytest.raises(KafkaException) as raised:
        wait_until_delivered(cast(Any, FatalProducer(callbacks)), 1.0)
    assert raised.value.args[0].code() == KafkaError._FENCED


def test_a_fatal_error_that_a_callback_has_cleared_is_the_one_of_the_log():
    class Cleared:
        def flush(self, _timeout_s: float) -> int:
            raise SystemError("flush returned NULL without setting an exception")

    said = "[thrd:main]: Fatal error: Broker: Cluster authorization failed: Failed to acquire idempotence PID"
    ClientLog({"bootstrap.servers": "there"}).log(50, "%s [%s] %s", "FATAL", "acktree#producer-1", said)
    with pytest.raises(KafkaException, match="Failed to acquire") as raised:
        wait_until_delivered(cast(Any, Cleared()), 1.0)
    assert raised.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert raised.value.args[0].fatal()
