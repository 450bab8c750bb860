"""The one reader of logs, on a real broker whose log is damaged, cut off or gone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.devbroker.broker import LocalBroker
from acktree.core import world
from acktree.core.errors import NotAuthorized
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.log_reader import Found, LogRange, LogReader, reader_settings
from acktree.core.kafka.unreadable import next_readable
from acktree.wire.state_records import LogEpoch
from deadlines import ANSWER_S, stretched

BATCHES = ("front", "middle", "behind")
IN_BATCH = 3
MIDDLE = range(4, 7)
END = 12  # each batch is a transaction, with a marker at its end
PLACE = "log", 0


@pytest.fixture
def broker(own_broker: Callable[..., LocalBroker], tmp_path: Path) -> LocalBroker:
    """A broker of whose log a byte in the middle batch is another than was written."""
    made = own_broker(data_dir=tmp_path / "data")
    admin = AdminClient({"bootstrap.servers": made.bootstrap})
    admin.create_topics([NewTopic(PLACE[0], 1)])[PLACE[0]].result(ANSWER_S)
    producer = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": "log", "linger.ms": 50})
    producer.init_transactions(ANSWER_S)
    for batch in BATCHES:
        producer.begin_transaction()
        for number in range(IN_BATCH):
            producer.produce(PLACE[0], f"{batch}-{number}", headers=[("acktree", b"x" * 40)])
        producer.commit_transaction(ANSWER_S)
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


def read_to(reader: LogReader, end: int) -> list[LogRange]:
    """Return what comes up to an offset."""
    found: list[LogRange] = []
    deadline_s = world.monotonic_s() + stretched(30)
    while not found or found[-1].end < end:
        assert world.monotonic_s() < deadline_s, found
        found += reader.read(100, 0.5)
    return found


def spans(found: list[LogRange]) -> list[tuple[Found, int, int]]:
    """Return what was found where, ranges of one kind in a row as one."""
    joined: list[tuple[Found, int, int]] = []
    for each in found:
        start = joined.pop()[1] if joined and joined[-1][0] is each.found else each.start
        joined.append((each.found, start, each.end))
    return joined


def test_a_damaged_batch_is_one_range_between_the_records_in_front_of_it_and_behind(
    broker: LocalBroker, consumer: Consumer
) -> None:
    reader = LogReader(consumer, broker.bootstrap, "reader", {})
    reader.begin({PLACE: 0})
    found = read_to(reader, END)
    # the marker in front of it was not seen: a search that begins there meets the damage
    assert spans(found) == [(Found.READ, 0, 3), (Found.DAMAGED, 3, 7), (Found.READ, 7, END)]
    values = [record.value() for each in found for record in each.records]
    assert values == [f"{batch}-{number}".encode() for batch in ("front", "behind") for number in range(3)]


def test_the_records_behind_a_damaged_batch_are_found_every_time(broker: LocalBroker) -> None:
    """The client may take bytes inside a damaged batch for the next one, and call that out of range."""
    for _ in range(30):
        assert next_readable(broker.bootstrap, {}, "reader", *PLACE, MIDDLE.start) == MIDDLE.stop


def test_what_was_removed_from_the_front_of_a_log_is_a_range(broker: LocalBroker, consumer: Consumer) -> None:
    reader = LogReader(consumer, broker.bootstrap, "reader", {})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    before = TopicPartition(*PLACE, 9)
    admin.delete_records([before])[before].result(ANSWER_S)
    reader.begin({PLACE: 1})
    assert spans(read_to(reader, END)) == [(Found.REMOVED, 1, 9), (Found.READ, 9, END)]


def test_a_log_that_ends_in_front_of_the_position_has_fallen_and_is_read_when_it_is_begun_again(
    broker: LocalBroker, consumer: Consumer
) -> None:
    reader = LogReader(consumer, broker.bootstrap, "reader", {})
    reader.begin({PLACE: 50})
    assert read_to(reader, 50) == [LogRange(PLACE, Found.FELL, END, 50)]
    reader.begin({PLACE: 9})
    assert spans(read_to(reader, END)) == [(Found.READ, 9, END)]


class Scripted:
    """A consumer whose calls return these entries: a place, an offset, and the code of an error."""

    def __init__(self, *calls: list[Any]) -> None:
        self._calls = [*calls]
        self.on_call: Callable[[], None] = lambda: None

    def consume(self, _most: int, _wait_s: float) -> list[Any]:
        return [*map(message, self._calls.pop(0))] if self._calls else []

    def incremental_assign(self, _places: Any) -> None:
        pass

    def incremental_unassign(self, _places: Any) -> None:
        pass

    def get_watermark_offsets(self, _place: Any, _timeout_s: float) -> Any:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


def message(entry: Any) -> Any:
    place, offset, code, *text = entry if len(entry) >= 3 else (*entry, None)
    error = None if code is None else KafkaError(code, *text)
    about = {"topic": place[0], "partition": place[1], "offset": offset, "error": error, "leader_epoch": None}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in about.items()})


def scripted(*calls: list[Any]) -> LogReader:
    reader = LogReader(Scripted(*calls), "nowhere", "reader", {})  # type: ignore[arg-type]
    reader.begin({PLACE: 0, OTHER: 0})
    return reader


OTHER = "log", 1


@pytest.mark.parametrize("code", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError._TRANSPORT])
def test_records_around_an_error_that_passes_are_all_returned(code: int) -> None:
    """One that was left out would count as an offset without a record."""
    reader = scripted([(PLACE, 0), (PLACE, None, code), (PLACE, 1)], [(PLACE, 2)])
    found = [*reader.read(10, 0.0), *reader.read(10, 0.0)]
    assert [record.offset() for each in found for record in each.records] == [0, 1, 2]


def test_what_came_with_an_error_that_does_not_pass_is_returned_before_it_is_raised() -> None:
    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    reader = scripted([(PLACE, 0), (OTHER, None, refused), (PLACE, 1)], [(PLACE, 2)])
    assert spans(reader.read(10, 0.0)) == [(Found.READ, 0, 2)]
    with pytest.raises(NotAuthorized, match="log/1"):
        reader.read(10, 0.0)
    assert spans(reader.read(10, 0.0)) == [(Found.READ, 2, 3)]


def test_what_came_with_damage_that_may_not_be_looked_at_is_returned_before_that_is_raised() -> None:
    reader = scripted([(PLACE, 0), (OTHER, None, KafkaError._BAD_MSG), (PLACE, 1)])
    assert spans(reader.read(10, 0.0)) == [(Found.READ, 0, 2)]
    with pytest.raises(NotAuthorized, match="log/1"):
        reader.read(10, 0.0)


def test_offsets_that_were_read_past_hold_no_record() -> None:
    end = KafkaError._PARTITION_EOF
    reader = scripted([(PLACE, 3), (PLACE, 7), (PLACE, 9, end)], [(PLACE, 9, end)], [(OTHER, 5, end)])
    (found,) = reader.read(10, 0.0)
    assert (found.found, found.start, found.end) == (Found.READ, 0, 9)
    assert [record.offset() for record in found.records] == [3, 7]
    assert reader.read(10, 0.0) == []
    assert reader.read(10, 0.0) == [LogRange(OTHER, Found.READ, 0, 5)]


def test_a_log_that_a_new_leader_has_written_again_has_fallen_though_it_is_longer_now() -> None:
    """Nobody sees it by the offsets; the client does, by the epoch of what it had read."""
    text = (
        "Partition log truncation detected at offset 3 (leader epoch 7): broker end offset is 2 (offset "
        "leader epoch 6). Reset to INVALID.: Local: Partition log truncation detected (broker 1)"
    )
    reset = KafkaError._AUTO_OFFSET_RESET
    reader = scripted([(PLACE, 0), (PLACE, 1), (PLACE, 2)], [(PLACE, -1001, reset, text)], [(PLACE, 3)])
    assert spans(reader.read(10, 0.0)) == [(Found.READ, 0, 3)]
    assert reader.read(10, 0.0) == [LogRange(PLACE, Found.FELL, 2, 3)]
    assert reader.read(10, 0.0) == []


class RebalancesInACall(Scripted):
    """A consumer whose group takes a partition away in a call, and gives it back from an offset on."""

    def consume(self, most: int, wait_s: float) -> list[Any]:
        found = super().consume(most, wait_s)
        if found:
            self.on_call()
        return found

    def assign(self, places: Any) -> None:
        self.assigned = [(place.partition, place.offset) for place in places]


def test_an_epoch_that_a_log_never_had_is_forgotten(broker: LocalBroker, consumer: Consumer) -> None:
    """As that of a topic which was deleted and created again; who reads that notices by its id."""
    reader = LogReader(consumer, broker.bootstrap, "reader", {})
    reader.begin({PLACE: 1}, {PLACE: LogEpoch(77, 1)})
    assert read_to(reader, MIDDLE.start)[0][:3] == (PLACE, Found.READ, 1)


def test_what_was_fetched_before_a_rebalance_in_the_same_call_does_not_count() -> None:
    consumer = RebalancesInACall([(PLACE, 9), (OTHER, 4)], [(PLACE, 3)])
    reader = LogReader(consumer, "nowhere", "reader", {}, is_member=True)  # type: ignore[arg-type]

    def take_and_give_back() -> None:
        reader.forget([PLACE])
        reader.begin({PLACE: 3})

    consumer.on_call = lambda: None
    reader.begin({PLACE: 9, OTHER: 4})
    consumer.on_call = take_and_give_back
    assert spans(reader.read(10, 0.0)) == [(Found.READ, 4, 5)]
    consumer.on_call = lambda: None
    assert spans(reader.read(10, 0.0)) == [(Found.READ, 3, 4)]
    assert consumer.assigned == [(1, 5), (0, 3)]


def test_a_member_that_may_not_read_what_it_subscribes_to_is_refused() -> None:
    """No partition of it is assigned yet; what is unreadable in one that was taken away says nothing."""
    refused, damaged = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._BAD_MSG
    consumer = Scripted([(OTHER, 3, damaged)], [((PLACE[0], -1), None, refused)])
    reader = LogReader(consumer, "nowhere", "reader", {}, is_member=True)  # type: ignore[arg-type]
    assert reader.read(10, 0.0) == []
    with pytest.raises(NotAuthorized, match="log"):
        reader.read(10, 0.0)
