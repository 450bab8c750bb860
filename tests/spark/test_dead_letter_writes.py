"""Nothing but the dead-letter topic itself keeps a dead letter from being written."""

from collections.abc import Callable

import pytest
from confluent_kafka import Message, TopicPartition

from acktree.core.errors import BrokerRefused
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.kafka.settings import ANY_SIZE
from acktree.producers.spouts.driver.dead_letters import DeadLetterReader
from acktree.wire.control_records import NEVER, Cause
from acktree.wire.dead_letter import LEFT_OUT, ORIGIN
from deadlines import stretched
from simulated_kafka import Simulation
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated

WAIT_S = stretched(30)


def give_up(t: SpoutTester, value: bytes, headers: dict[str, bytes] | None = None) -> None:
    """Write a source record, emit it and fail it for good."""
    producer = make_producer({"bootstrap.servers": t.bootstrap, **ANY_SIZE})
    producer.produce(f"{t.name}.source", value, b"its key", partition=0, headers=headers)
    assert producer.flush(WAIT_S) == 0
    ((offset, generation),) = t.emitted(t.next_batch())
    t.send_result(failed=[(offset, generation, Cause.FAILED)])


def dead_letters(t: SpoutTester) -> list[Message]:
    place = TopicPartition(f"{t.name}.dead-letter", 0, 0)
    reader = make_consumer(
        {"bootstrap.servers": t.bootstrap, "group.id": t.name, "enable.partition.eof": True}
    )
    reader.assign([place])
    found = []
    while not (message := reader.poll(WAIT_S)).error():
        found.append(message)
    reader.close()
    return found


@pytest.mark.virtual
def test_a_dead_letter_does_not_wait_for_a_report_that_cannot_be_written(
    spout: Callable[..., SpoutTester], simulation: Simulation
) -> None:
    t = spout(records=0, max_attempts=1)
    simulation.cluster.holds = lambda _writer, topic, _age_s: topic == f"{t.name}.stats"
    give_up(t, b"poison")
    t.until(lambda: t.count("dead_lettered") == 1)
    assert len(dead_letters(t)) == 1


def test_a_large_record_becomes_a_dead_letter_where_that_topic_accepts_more(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0, max_attempts=1)
    t.limit("dead-letter", 1_100_000)
    give_up(t, b"x" * 1_040_000)
    t.until(lambda: t.count("dead_lettered") == 1)
    (letter,) = dead_letters(t)
    assert len(letter.value()) == 1_040_000
    assert dict(letter.headers())[LEFT_OUT] == b""


@pytest.mark.parametrize("where", ["value", "headers"])
def test_a_record_too_large_for_a_dead_letter_is_named_there_without_its_content(
    spout: Callable[..., SpoutTester], where: str
) -> None:
    t = spout(records=0, max_attempts=1)
    t.limit("dead-letter", 10_000)
    give_up(t, *((b"x" * 20_000,) if where == "value" else (b"x", {"large": b"y" * 20_000})))
    t.until(lambda: t.count("dead_lettered") == 1)
    (letter,) = dead_letters(t)
    headers = dict(letter.headers())
    assert (letter.key(), letter.value(), "large" in headers) == (None, None, False)
    assert headers[ORIGIN] == f"{t.name}.source/0/0".encode()
    assert b"see the origin" in headers[LEFT_OUT]


def test_if_no_dead_letter_fits_the_topic_to_change_is_named(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=0, max_attempts=1)
    t.limit("dead-letter", 100)
    give_up(t, b"x")
    with pytest.raises(
        BrokerRefused, match=rf"topic {t.name}\.dead-letter .*max\.message\.bytes of this topic"
    ):
        t.until(lambda: False)


def test_a_rejected_record_is_not_emitted_again_if_its_dead_letter_cannot_be_made(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query fails, and Spark closes the driver: what that commits does not hold the result half."""
    t = spout(records=1)
    ((offset, generation),) = t.emitted(t.next_batch())
    t.send_result(failed=[(offset, generation, Cause.FAILED)], retry_after_ms=NEVER)
    with monkeypatch.context() as broken:
        broken.setattr(DeadLetterReader, "read", lambda _self, _records: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            t.until(lambda: False)
        t.driver.close()
    t.start()
    assert t.next_batch() is None
    t.until(lambda: t.count("dead_lettered") == 1)
    assert len(dead_letters(t)) == 1
