"""What happens to a topic that a bolt in Spark reads, while and between its drivers: loss is said."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from acktree.core import world
from acktree.core.errors import MissingTopic
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt
from acktree.producers.errors import DeliveryFailed
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.producers.spouts.driver.sources.log_bounds import DataLoss, OffsetOutOfRange
from acktree.producers.spouts.driver.sources.source_topics import VanishedPartition
from acktree.producers.spouts.driver.sources.source_watch import CHECK_INTERVAL_S
from acktree.producers.spouts.driver.task_fencing import transactional_id
from acktree.producers.spouts.outside_commit import RENEW_INTERVAL_S
from acktree.producers.worker.loop import Worker
from acktree.spark.driver.bolt_driver import BoltDriver
from acktree.spark.shared.batch_commits import BatchCommits, BatchName, ReadTaskName
from acktree.spark.shared.bolt_claim import NewerDriver, check_claim
from acktree.spark.shared.options import SourceOptions
from acktree.spark.source import AcktreeStreamReader
from acktree.spark.tasks.reading.read_task import read_offsets, read_tasks
from acktree.spark.tasks.writing.record_transaction import RecordTransaction, TransactionLost
from deadlines import ANSWER_S, stretched
from producers.cluster import RunningWorker
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

TOPOLOGY = """
name = "{name}"
ackers = 1
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.out"]
[bolts.b]
reads = ["{name}.out"]
"""
DEADLINE_S = stretched(30)
FORGIVING = {"failOnDataLoss": "false"}


class BoltTester:
    """A bolt on a topology of its own, driven call by call; the test plays Spark and the operator."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name, self.out = bootstrap, name, f"{name}.out"
        self.admin = make_admin(bootstrap, {})
        self.make_topics(2)
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
        self._drivers: list[BoltDriver] = []
        self.now_s = 1000.0

    def make_topics(self, partitions: int) -> None:
        for topic, count in ((f"{self.name}.source", 1), (self.out, partitions)):
            if topic not in self.admin.list_topics(timeout=ANSWER_S).topics:
                self.admin.create_topics([NewTopic(topic, count)])[topic].result()
        until(lambda: self.out in self.admin.list_topics(timeout=ANSWER_S).topics)

    def recreate(self, partitions: int) -> None:
        self.remove()
        self.make_topics(partitions)

    def remove(self) -> None:
        self.admin.delete_topics([self.out])[self.out].result()
        until(lambda: self.out not in self.admin.list_topics(timeout=ANSWER_S).topics)

    def send(self, count: int, partition: int = 0) -> None:
        producer = make_producer({"bootstrap.servers": self.bootstrap})
        for number in range(count):
            producer.produce(self.out, str(number), partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    def grow(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.out, partitions)])[self.out].result()
        until(lambda: len(self.admin.list_topics(self.out, 10).topics[self.out].partitions) == partitions)

    def delete_offsets(self) -> None:
        """Do what the broker does once all offsets of a group have expired."""
        self.admin.delete_consumer_groups([f"{self.name}.b"])[f"{self.name}.b"].result()

    def committed(self, partition: int = 0) -> int:
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.b"})
        (place,) = consumer.committed([TopicPartition(self.out, partition)], timeout=DEADLINE_S)
        consumer.close()
        return place.offset

    def commit(self, offset: int) -> None:
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.b"})
        consumer.commit(offsets=[TopicPartition(self.out, 0, offset)], asynchronous=False)
        consumer.close()

    def remove_before(self, offset: int) -> None:
        """Do what retention does."""
        place = TopicPartition(self.out, 0, offset)
        self.admin.delete_records([place])[place].result()

    def start(self, logged: PlannedBatch | None = None, **more: str) -> BoltDriver:
        place = {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name, "bolt": "b"}
        self.options = SourceOptions.parse({**place, **more})
        self._drivers.append(BoltDriver(self.options, monotonic=lambda: self.now_s))
        self._drivers[-1].open(logged)
        return self._drivers[-1]

    def read(self, driver: BoltDriver, batch: PlannedBatch) -> int:
        """Do what Spark's tasks do; return how many rows there are."""
        todo = read_tasks(self.options, driver.topology, batch)
        return sum(len(rows) for task in todo for rows in read_offsets(task))

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()


def next_batch(driver: BoltDriver) -> PlannedBatch:
    """Return what there is to read, once there is something."""
    deadline_s = world.monotonic_s() + DEADLINE_S
    while (batch := driver.next_batch(driver.log_ends(), None)) is None:
        assert world.monotonic_s() < deadline_s, "nothing to read"
        driver.service(0.05)
    return batch


def until(holds: Callable[[], bool]) -> None:
    deadline_s = world.monotonic_s() + DEADLINE_S
    while not holds():
        assert world.monotonic_s() < deadline_s
        world.sleep(0.05)


@pytest.fixture
def bolt(
    kafka: str, unique: str, simulation: Simulation | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BoltTester]:
    monkeypatch.setattr(
        "acktree.producers.spouts.driver.sources.log_bounds.END_CHECK_INTERVAL_S", 0.05
    )  # one broker: no other leader
    made: list[BoltTester] = []
    run_in(simulation, lambda: made.append(BoltTester(kafka, unique)))
    yield made[0]
    run_in(simulation, made[0].close)


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
def test_a_cap_below_the_number_of_partitions_leaves_none_waiting(bolt: BoltTester, cap: int):
    """One partition has far more than the others, and each gets its turn."""
    bolt.grow(5)
    for partition, count in enumerate((200, 3, 0, 3, 1)):
        bolt.send(count, partition)
    driver = bolt.start(startingOffsets="earliest")
    read = [0] * 5
    for _ in range(20):
        batch = driver.next_batch(driver.log_ends(), cap)
        assert batch is not None
        assert batch.records <= cap
        for range_ in batch.ranges:
            read[range_.partition] += range_.end - range_.start
        driver.written(batch)
    assert read[1:] == [3, 0, 3, 1]
    assert read[0] >= 3


def test_expired_records_of_a_planned_batch_are_an_error_or_counted_as_done(bolt: BoltTester):
    bolt.send(10)
    driver = bolt.start()
    batch = next_batch(driver)
    bolt.remove_before(4)
    with pytest.raises(OffsetOutOfRange, match=r"no longer holds offsets 0 to 3.*failOnDataLoss=false"):
        bolt.read(driver, batch)
    driver = bolt.start(**FORGIVING)
    assert bolt.read(driver, next_batch(driver)) == 6


def test_an_offset_beyond_the_end_is_an_error_or_reset_to_the_end(bolt: BoltTester):
    bolt.send(3)
    bolt.commit(10)
    with pytest.raises(DataLoss, match=r"ends at offset 3, but group .* is at 10"):
        bolt.start()
    driver = bolt.start(**FORGIVING)
    bolt.send(2)
    assert bolt.read(driver, next_batch(driver)) == 2


def test_a_recreated_topic_with_fewer_records_is_noticed_at_the_next_trigger(bolt: BoltTester):
    bolt.send(5)
    driver = bolt.start()
    driver.written(next_batch(driver))
    bolt.recreate(partitions=2)
    bolt.send(2)
    with pytest.raises(DataLoss, match=r"ends at offset 2, but group .* is at 5"):
        next_batch(driver)


def test_a_deleted_topic_is_an_error_where_its_end_is_read(bolt: BoltTester):
    bolt.send(5)
    driver = bolt.start()
    next_batch(driver)
    bolt.remove()
    with pytest.raises(MissingTopic, match="if it was deleted"):
        next_batch(driver)


def test_a_smaller_partition_count_is_an_error_at_the_next_trigger(bolt: BoltTester):
    bolt.send(5)
    driver = bolt.start()
    next_batch(driver)
    bolt.recreate(partitions=1)
    with pytest.raises(VanishedPartition):
        next_batch(driver)


def test_a_partition_that_is_added_is_read_from_its_beginning_by_a_live_bolt(bolt: BoltTester):
    bolt.send(3)
    driver = bolt.start(startingOffsets="latest")
    bolt.grow(3)
    bolt.send(2, partition=2)
    assert driver.next_batch(driver.log_ends(), None) is None, "it stands at the end"
    bolt.now_s += CHECK_INTERVAL_S
    batch = next_batch(driver)
    assert [(r.partition, r.start, r.end) for r in batch.ranges if r.start < r.end] == [(2, 0, 2)]
    driver.written(batch)
    assert [bolt.committed(partition) for partition in range(3)] == [3, 0, 2]


def test_a_bolt_that_begins_at_the_end_commits_that_offset_before_it_reads(bolt: BoltTester):
    """Else an acker takes what is there, which nobody will read, for the queue of this bolt."""
    bolt.send(3)
    bolt.start(startingOffsets="latest")
    assert [bolt.committed(partition) for partition in range(2)] == [3, 0]


def test_a_bolt_whose_offsets_have_expired_commits_where_its_logged_batch_begins(bolt: BoltTester):
    bolt.send(3)
    driver = bolt.start()
    driver.written(next_batch(driver))
    bolt.send(1)
    batch = next_batch(driver)
    bolt.delete_offsets()
    bolt.start(batch)
    assert bolt.committed() == 3


def test_a_partition_added_while_no_driver_ran_is_read_from_its_beginning(bolt: BoltTester):
    bolt.send(3)
    driver = bolt.start(startingOffsets="latest")
    driver.written(driver.position())
    bolt.grow(3)
    bolt.send(2, partition=2)
    driver = bolt.start(startingOffsets="latest")
    assert bolt.read(driver, next_batch(driver)) == 2


def test_a_batch_logged_before_a_topic_grew_is_committed_where_it_was_read(bolt: BoltTester):
    bolt.send(3)
    driver = bolt.start()
    batch = next_batch(driver)
    swapped = replace(batch, ranges=tuple(r._replace(slot=1 - r.slot) for r in batch.ranges))
    driver = bolt.start(swapped)
    driver.written(swapped)
    assert [bolt.committed(partition) for partition in range(2)] == [3, 0]
    assert driver.all_done(driver.log_ends())


def test_an_idle_bolt_commits_again_before_its_offsets_expire(bolt: BoltTester):
    bolt.send(3)
    driver = bolt.start()
    driver.written(next_batch(driver))
    bolt.delete_offsets()
    driver.service(0.0)
    assert bolt.committed() < 0, "nothing has changed"
    bolt.now_s += RENEW_INTERVAL_S
    driver.service(0.0)
    assert bolt.committed() == 3


def test_a_bolt_whose_offsets_have_expired_continues_after_the_logged_batch(bolt: BoltTester):
    bolt.send(3)
    driver = bolt.start()
    batch = next_batch(driver)
    driver.written(batch)
    bolt.delete_offsets()
    bolt.send(1)
    for starting in ("earliest", "latest"):
        driver = bolt.start(batch, startingOffsets=starting)
        assert bolt.read(driver, next_batch(driver)) == 1


@pytest.mark.real
def test_a_recreated_topic_stops_a_live_bolt_even_if_it_is_long_enough(bolt: BoltTester):
    bolt.send(2)
    driver = bolt.start()
    driver.written(next_batch(driver))
    bolt.recreate(partitions=2)
    bolt.send(5)
    bolt.now_s += CHECK_INTERVAL_S
    with pytest.raises(DataLoss, match=r"recreated.*failOnDataLoss=false"):
        driver.service(0.0)


@pytest.mark.real
@pytest.mark.promise("a second driver of a bolt starts")
def test_a_second_driver_of_a_bolt_fences_the_first(bolt: BoltTester):
    """Each tuple would be acked twice, and no tree would ever be done."""
    bolt.send(5)
    first = bolt.start()
    batch = next_batch(first)
    second = bolt.start()
    with pytest.raises(NewerDriver, match="another Spark application has started this bolt"):
        first.written(batch)
    bolt.now_s += RENEW_INTERVAL_S
    with pytest.raises(NewerDriver):
        first.service(0.0)
    second.service(0.0)
    second.written(next_batch(second))
    assert bolt.committed() == 5


class CountsExecutions(BasicBolt):
    seen = 0

    def execute(self, tup: Any, emit: Any) -> None:
        self.seen += 1


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_bolt_moves_between_spark_and_python(bolt: BoltTester, has_checkpoint: bool):
    bolt.send(5)
    driver = bolt.start()
    batch = next_batch(driver)
    assert bolt.read(driver, batch) == 5
    driver.written(batch)
    driver.close()
    bolt.send(3)
    counted = CountsExecutions()
    worker = RunningWorker(Worker(bolt.bootstrap, bolt.name, counted, name="b"))
    until(lambda: bolt.committed() == 8)
    worker.stop()
    assert counted.seen == 3
    bolt.send(2)
    driver = bolt.start(batch if has_checkpoint else None)
    again = next_batch(driver)
    assert [(range_.start, range_.end) for range_ in again.ranges if range_.end > range_.start] == [(8, 10)]
    driver.written(again)
    assert bolt.committed() == 10


def test_a_task_of_a_driver_whose_claim_is_gone_commits_nothing(bolt: BoltTester):
    driver = bolt.start()
    commits = BatchCommits(bolt.bootstrap, {}, f"{bolt.name}.b")
    check_claim(commits, bolt.name, driver.claim)
    bolt.admin.delete_consumer_groups([commits.group])[commits.group].result()
    with pytest.raises(NewerDriver, match=r"or group .*\.b\.stage was deleted"):
        check_claim(commits, bolt.name, driver.claim)
    commits.consumer.close()


def test_a_start_ends_transactions_left_open_by_tasks_of_an_earlier_driver(bolt: BoltTester):
    """All spouts write their inits to one topic: whatever is open there holds the trees of all."""
    bolt.send(1)
    bolt.start()
    commits = BatchCommits(bolt.bootstrap, {}, f"{bolt.name}.b")
    left = RecordTransaction(bolt.bootstrap, {}, transactional_id(f"{bolt.name}.b", bolt.out, 0))
    assert left.begin(BatchName("query", 1), ReadTaskName(bolt.out, 0, 1, "digest"), commits)
    left.send(f"{bolt.name}.ack", 0, b"of a killed task")
    left.flush(DEADLINE_S)
    reader = AcktreeStreamReader(bolt.options)
    reader.initialOffset()
    with pytest.raises((TransactionLost, DeliveryFailed)):
        left.flush_and_commit()
    reader.stop()
    commits.consumer.close()
