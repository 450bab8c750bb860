"""The one reader of logs, on a real broker whose log is damaged, cut off or gone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.devbroker.broker import LocalBroker
from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.log_reader import Found, LogReader, Stretch, reader_settings
from acktree.core.kafka.unreadable import find_continuation
from deadlines import ANSWER_S, stretched

BATCHES = ("front", "middle", "behind")
IN_BATCH = 3
END = IN_BATCH * len(BATCHES)
PLACE = "log", 0


@pytest.fixture
def broker(own_broker: Callable[..., LocalBroker], tmp_path: Path) -> LocalBroker:
    """A broker of whose log a byte in the middle batch is another than was written."""
    made = own_broker(data_dir=tmp_path / "data")
    admin = AdminClient({"bootstrap.servers": made.bootstrap})
    admin.create_topics([NewTopic(PLACE[0], 1)])[PLACE[0]].result(ANSWER_S)
    producer = Producer({"bootstrap.servers": made.bootstrap, "linger.ms": 50})
    for batch in BATCHES:
        for number in range(IN_BATCH):
            producer.produce(PLACE[0], f"{batch}-{number}")
        assert producer.flush(ANSWER_S) == 0
    (segment,) = (tmp_path / "data").rglob("log-0/*.log")
    with segment.open("r+b") as file:
        at = file.read().index(b"middle-1")
        file.seek(at)
        file.write(b"M")
    return made


@pytest.fixture
def consumer(broker: LocalBroker) -> Iterator[Consumer]:
    made = make_consumer(reader_settings(broker.bootstrap, "reader", {}))
    yield made
    made.close()


def read_to(reader: LogReader, end: int) -> list[Stretch]:
    """Return what comes up to an offset."""
    found: list[Stretch] = []
    deadline_s = world.monotonic_s() + stretched(30)
    while not found or found[-1].end < end:
        assert world.monotonic_s() < deadline_s, found
        found += reader.read(100, 0.5)
    return found


def spans(found: list[Stretch]) -> list[tuple[Found, int, int]]:
    """Return what was found where, stretches of one kind in a row as one."""
    joined: list[tuple[Found, int, int]] = []
    for each in found:
        start = joined.pop()[1] if joined and joined[-1][0] is each.found else each.start
        joined.append((each.found, start, each.end))
    return joined


def test_a_damaged_batch_is_one_stretch_between_the_records_in_front_of_it_and_behind(
    broker: LocalBroker, consumer: Consumer
) -> None:
    reader = LogReader(consumer, broker.bootstrap, "reader", {})
    reader.begin({PLACE: 0})
    found = read_to(reader, END)
    assert spans(found) == [(Found.READ, 0, 3), (Found.DAMAGED, 3, 6), (Found.READ, 6, 9)]
    values = [record.value() for each in found for record in each.records]
    assert values == [f"{batch}-{number}".encode() for batch in ("front", "behind") for number in range(3)]


def test_the_records_behind_a_damaged_batch_are_found_every_time(broker: LocalBroker) -> None:
    """The client may take bytes inside a damaged batch for the next one, and call that out of range."""
    for _ in range(30):
        found = find_continuation(broker.bootstrap, {}, "reader", *PLACE, IN_BATCH)
        assert (found.next_offset, list(found.damaged)) == (6, [3, 4, 5])


def test_what_was_removed_from_the_front_of_a_log_is_a_stretch(
    broker: LocalBroker, consumer: Consumer
) -> None:
    reader = LogReader(consumer, broker.bootstrap, "reader", {})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    before = TopicPartition(*PLACE, 7)
    admin.delete_records([before])[before].result(ANSWER_S)
    reader.begin({PLACE: 1})
    assert spans(read_to(reader, END)) == [(Found.REMOVED, 1, 7), (Found.READ, 7, 9)]


def test_a_log_that_ends_in_front_of_the_position_has_fallen_and_is_read_when_it_is_begun_again(
    broker: LocalBroker, consumer: Consumer
) -> None:
    reader = LogReader(consumer, broker.bootstrap, "reader", {})
    reader.begin({PLACE: 50})
    assert read_to(reader, 50) == [Stretch(PLACE, Found.FELL, END, 50)]
    reader.begin({PLACE: 7})
    assert spans(read_to(reader, END)) == [(Found.READ, 7, 9)]
