"""What happens to a topic that a bolt in Spark reads, while and between its drivers: loss is said."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.schemas.errors import MissingTopic
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology
from acktree.spark.batch import Batch
from acktree.spark.bolt_driver import BoltDriver
from acktree.spark.log_bounds import DataLoss, OffsetOutOfRange
from acktree.spark.options import SourceOptions
from acktree.spark.reading import read_share, shares
from acktree.spark.source_topics import VanishedPartition

TOPOLOGY = """
name = "{name}"
ackers = 1
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.out"]
[bolts.b]
reads = ["{name}.out"]
"""
DEADLINE_S = 30
FORGIVING = {"failOnDataLoss": "false"}


class Bolt:
    """A bolt on a topology of its own, driven call by call; the test plays Spark and the operator."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name, self.out = bootstrap, name, f"{name}.out"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.make_topics(2)
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
        self._drivers: list[BoltDriver] = []

    def make_topics(self, partitions: int) -> None:
        for topic, count in ((f"{self.name}.source", 1), (self.out, partitions)):
            if topic not in self.admin.list_topics(timeout=10).topics:
                self.admin.create_topics([NewTopic(topic, count)])[topic].result()
        until(lambda: self.out in self.admin.list_topics(timeout=10).topics)

    def recreate(self, partitions: int) -> None:
        self.remove()
        self.make_topics(partitions)

    def remove(self) -> None:
        self.admin.delete_topics([self.out])[self.out].result()
        until(lambda: self.out not in self.admin.list_topics(timeout=10).topics)

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(count):
            producer.produce(self.out, str(number), partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def commit(self, offset: int) -> None:
        place = TopicPartition(self.out, 0, offset)
        group = ConsumerGroupTopicPartitions(f"{self.name}.b", [place])
        (done,) = self.admin.alter_consumer_group_offsets([group]).values()
        done.result(DEADLINE_S)

    def remove_before(self, offset: int) -> None:
        """Do what retention does."""
        place = TopicPartition(self.out, 0, offset)
        self.admin.delete_records([place])[place].result()

    def start(self, **more: str) -> BoltDriver:
        place = {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name, "bolt": "b"}
        self.options = SourceOptions.parse({**place, **more})
        self._drivers.append(BoltDriver(self.options))
        self._drivers[-1].open(None)
        return self._drivers[-1]

    def read(self, driver: BoltDriver, batch: Batch) -> int:
        """Do what Spark's tasks do; return how many rows there are."""
        todo = shares(self.options, driver.topology, batch)
        return sum(len(rows) for share in todo for rows in read_share(share))

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()


def next_batch(driver: BoltDriver) -> Batch:
    """Return what there is to read, once there is something."""
    deadline_s = time.monotonic() + DEADLINE_S
    while (batch := driver.next_batch(driver.log_ends(), None)) is None:
        assert time.monotonic() < deadline_s, "nothing to read"
        driver.service(0.05)
    return batch


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def bolt(bootstrap: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bolt]:
    monkeypatch.setattr("acktree.spark.log_bounds.PATIENCE_S", 0.05)  # one broker: no other leader
    monkeypatch.setattr("acktree.spark.task_notes._path", lambda: None)  # no Spark task runs
    made = Bolt(bootstrap, unique)
    yield made
    made.close()


def test_retention_that_passes_what_a_batch_names_is_said_or_counted_as_done(bolt: Bolt):
    bolt.send(10)
    driver = bolt.start()
    batch = next_batch(driver)
    bolt.remove_before(4)
    with pytest.raises(OffsetOutOfRange, match=r"no longer 0 to 3.*failOnDataLoss=false"):
        bolt.read(driver, batch)
    driver = bolt.start(**FORGIVING)
    assert bolt.read(driver, next_batch(driver)) == 6


def test_an_offset_behind_the_end_is_said_or_gone_back_from(bolt: Bolt):
    bolt.send(3)
    bolt.commit(10)
    with pytest.raises(DataLoss, match=r"ends at offset 3, but group .* stands at 10"):
        bolt.start()
    driver = bolt.start(**FORGIVING)
    bolt.send(2)
    assert bolt.read(driver, next_batch(driver)) == 2


def test_a_topic_created_anew_with_fewer_records_is_noticed_at_the_next_trigger(bolt: Bolt):
    bolt.send(5)
    driver = bolt.start()
    driver.written(next_batch(driver))
    bolt.recreate(partitions=2)
    bolt.send(2)
    with pytest.raises(DataLoss, match=r"ends at offset 2, but group .* stands at 5"):
        next_batch(driver)


def test_a_topic_that_vanished_is_said_where_its_end_is_asked_for(bolt: Bolt):
    bolt.send(5)
    driver = bolt.start()
    next_batch(driver)
    bolt.remove()
    with pytest.raises(MissingTopic, match="if it was deleted"):
        next_batch(driver)


def test_a_partition_count_that_shrank_is_said_at_the_next_trigger(bolt: Bolt):
    bolt.send(5)
    driver = bolt.start()
    next_batch(driver)
    bolt.recreate(partitions=1)
    with pytest.raises(VanishedPartition):
        next_batch(driver)
