"""What a dead letter keeps of the tuple that failed for good."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from acktree.core.kafka.clients import make_consumer
from acktree.wire.codec import encode_result
from acktree.wire.control_records import BACK_OFF, Cause, FailedTuple, Failure, Result
from acktree.wire.dead_letter import FAILED_TUPLE, FAILED_VALUE, FAILED_VALUE_NOTE, STACK
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import generation_of, root_id
from deadlines import stretched
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated

WAIT_S = stretched(30)


def give_up(t: SpoutTester, failed: FailedTuple) -> dict[str, bytes | None]:
    """Fail the first emission as an acker does; return the headers of its dead letter."""
    ((_, generation), *_) = t.emitted(t.next_batch())
    failure = Failure(root_id(0, generation, 0), Cause.FAILED, "b-0", "because", BACK_OFF, failed)
    t.producer.produce(f"{t.name}.spout-0", encode_result(Result(0, failed=[failure])))
    t.producer.flush()
    t.until(lambda: t.count("dead_lettered") == 1)
    reader = make_consumer({"bootstrap.servers": t.bootstrap, "group.id": t.name})
    reader.assign([TopicPartition(f"{t.name}.dead-letter", 0, 0)])
    (record,) = reader.consume(1, WAIT_S)
    reader.close()
    assert record.value() == b"record 0"
    return dict(record.headers())


def write_tuple(t: SpoutTester, root: int, value: bytes = b"the word") -> None:
    header = encode_header(1, [Anchor(1, root, 5)])
    t.producer.produce(f"{t.name}.out", value, partition=0, headers=[(HEADER, header)])
    assert t.producer.flush(WAIT_S) == 0


def first_root(t: SpoutTester) -> int:
    return root_id(0, generation_of(t.driver.tasks[0].slots[0].run, 0), 0)


def test_the_tuple_is_read_by_its_coordinates(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=1, max_attempts=1)
    write_tuple(t, first_root(t))
    headers = give_up(t, FailedTuple(f"{t.name}.out", 0, 0, "in execute\n"))
    assert headers[FAILED_TUPLE] == f"{t.name}.out/0/0".encode()
    assert (headers[FAILED_VALUE], headers[FAILED_VALUE_NOTE]) == (b"the word", b"")
    assert headers[STACK] == b"in execute\nbecause\n"


@pytest.mark.parametrize(
    ("case", "note"),
    [("another root", b"another record"), ("not there yet", b"not read"), ("no topic", b"not read")],
)
def test_an_unreadable_value_is_mentioned_and_holds_no_dead_letter_back(
    spout: Callable[..., SpoutTester], case: str, note: bytes
) -> None:
    t = spout(records=1, max_attempts=1)
    if case == "another root":
        write_tuple(t, 77)
    topic = "there.is.none" if case == "no topic" else f"{t.name}.out"
    headers: dict[str, Any] = give_up(t, FailedTuple(topic, 0, 0))
    assert headers[FAILED_VALUE] is None
    assert note in headers[FAILED_VALUE_NOTE]
    assert headers[STACK] == b""


@pytest.mark.real
def test_a_dead_letter_that_is_too_large_with_the_tuple_is_written_without(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0, max_attempts=1)
    limit = 1_000_000
    t.producer.produce(f"{t.name}.source", b"x" * (limit - 3_000), partition=0)
    t.producer.flush()
    write_tuple(t, first_root(t), b"y" * 10_000)
    ((_, generation),) = t.emitted(t.next_batch())
    failed = FailedTuple(f"{t.name}.out", 0, 0, "z" * 4_000)
    failure = Failure(root_id(0, generation, 0), Cause.FAILED, "b-0", "because", BACK_OFF, failed)
    t.producer.produce(f"{t.name}.spout-0", encode_result(Result(0, failed=[failure])))
    t.producer.flush()
    t.until(lambda: t.count("dead_lettered") == 1)
