"""Batch commit records of a task's transaction, on a real broker: found again, kept, and no zombie's."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.spark.shared.batch_commits import BatchCommits, BatchName, ReadTaskName, commit_of_task
from acktree.spark.tasks.writing.batch_transaction import BatchTransaction
from acktree.spark.tasks.writing.record_transaction import RecordTransaction, Transaction
from acktree.spark.tasks.writing.transactions import begin_transaction, open_transactions
from spark.commit_history import times_committed

BATCH = BatchName("query", 3)
Open = Callable[..., Transaction]


@pytest.fixture
def read_task(bootstrap: str, unique: str) -> ReadTaskName:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(unique, 1)])[unique].result()
    return ReadTaskName(unique, 0, 7, "digest")


@pytest.fixture
def held(bootstrap: str, unique: str) -> Iterator[BatchCommits]:
    made = BatchCommits(bootstrap, {}, unique)
    yield made
    made.consumer.close()


@pytest.fixture(params=[BatchTransaction, RecordTransaction], ids=["batches", "records"])
def begun(
    request: pytest.FixtureRequest, bootstrap: str, unique: str, read_task: ReadTaskName, held: BatchCommits
) -> Iterator[Open]:
    """Return a function that begins the transaction of a batch; each has the same transactional id."""
    opened: list[Transaction] = []

    def begin(number: int = BATCH.number) -> Transaction:
        opened.append(request.param(bootstrap, {}, unique))
        assert opened[-1].begin(BatchName("query", number), read_task, held)
        return opened[-1]

    yield begin
    for transaction in opened:
        transaction.close()


def test_a_batch_commit_record_is_found_whatever_its_length(
    begun: Open, read_task: ReadTaskName, held: BatchCommits
):
    transaction = begun(number=0)
    for length in range(60):
        transaction.flush_and_commit()
        batch = BatchName("q" * length, length)
        assert transaction.begin(batch, read_task, held)
        transaction.flush_and_commit()
        assert not transaction.begin(batch, read_task, held)
        assert transaction.begin(BatchName("next", length), read_task, held)
    transaction.flush_and_commit()


def test_a_batch_commit_record_that_is_found_is_committed_again_before_it_expires(
    begun: Open, bootstrap: str, read_task: ReadTaskName, held: BatchCommits
):
    transaction = begun()
    transaction.flush_and_commit()
    record = commit_of_task(BATCH, read_task).metadata
    assert times_committed(bootstrap, held.group, record) == 1
    for times in (2, 3):
        assert not transaction.begin(BATCH, read_task, held)
        assert times_committed(bootstrap, held.group, record) == times
    following = BatchName("query", 4)
    assert transaction.begin(following, read_task, held), "it can be used as before"
    transaction.flush_and_commit()
    assert held.is_set(commit_of_task(following, read_task))


def test_a_zombie_does_not_overwrite_the_batch_commit_record_of_a_later_batch(
    begun: Open, read_task: ReadTaskName, held: BatchCommits
):
    zombie = begun()
    zombie.flush_and_commit()
    heir = begun(number=4)
    heir.flush_and_commit()
    held_by_zombie = SimpleNamespace(is_set=lambda _record: True, group=held.group, consumer=held.consumer)
    with pytest.raises(KafkaException, match="fenced"):
        zombie.begin(BATCH, read_task, held_by_zombie)
    assert not heir.begin(BatchName("query", 4), read_task, held)


class Deaf:
    """A producer whose coordinator went away: putting offsets into a transaction never returns."""

    def __init__(self, producer: object) -> None:
        self.producer, self.end = producer, threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self.producer, name)

    def send_offsets_to_transaction(self, *_what: object) -> None:
        self.end.wait(60)


def test_a_call_that_never_returns_fails_no_task_and_another_producer_takes_over(
    bootstrap: str, read_task: ReadTaskName, held: BatchCommits, monkeypatch: pytest.MonkeyPatch
):
    following = BatchName("query", 4)
    settings, group = {"linger.ms": "1"}, held.group.removesuffix(".stage")  # so it writes record by record
    first = begin_transaction(bootstrap, settings, group, BATCH, read_task)
    assert isinstance(first, RecordTransaction)
    first.flush_and_commit()
    first.producer = deaf = Deaf(first.producer)
    with monkeypatch.context() as soon:
        soon.setattr("acktree.spark.tasks.writing.record_transaction.COMMIT_RECORD_TIMEOUT_S", 0.2)
        with pytest.raises(KafkaException, match=r"no answer for .* the producer is abandoned"):
            first.begin(following, read_task, held)
    second = begin_transaction(bootstrap, settings, group, following, read_task)
    assert second is not None
    assert second is not first
    second.flush_and_commit()
    deaf.end.set()
    assert held.is_set(commit_of_task(following, read_task))
    for transaction in open_transactions.pop_oldest():
        transaction.close()


def test_a_call_is_retried_while_the_coordinator_is_not_ready(
    read_task: ReadTaskName, held: BatchCommits, monkeypatch: pytest.MonkeyPatch
):
    answers: list[KafkaError | None] = [KafkaError(KafkaError.NOT_COORDINATOR), None]

    def committed(places: list[TopicPartition], _timeout_s: float) -> list[TopicPartition]:
        if (error := answers.pop(0)) is not None:
            raise KafkaException(error)
        return [record]

    answering = SimpleNamespace(poll=lambda _timeout_s: None, committed=committed)
    record = commit_of_task(BATCH, read_task)
    with monkeypatch.context() as there:
        there.setattr(held, "consumer", answering)
        assert held.is_set(record)
    assert not answers
