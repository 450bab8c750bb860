"""A task's transaction on a real broker, in whole batches and record by record: the same promises."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from acktree.console.devbroker.broker import LocalBroker
from acktree.core.errors import BrokerUnreachable, RefusedSetting
from acktree.core.kafka.clients import make_consumer
from acktree.producers.columns import Rows
from acktree.producers.errors import DeliveryFailed, MissingPartition, TooLarge
from acktree.spark.native.aiokafka_client import batch_client_settings
from acktree.spark.native.batch_producer import Addressed, BatchProducer
from acktree.spark.native.switch import NativeOff
from acktree.spark.shared.batch_commits import BatchCommits, BatchName, ReadTaskName, commit_of_task
from acktree.spark.shared.per_process import PerProcess
from acktree.spark.tasks.writing import batch_transaction, record_transaction, transactions
from acktree.spark.tasks.writing.batch_transaction import SINGLE_BYTES, BatchTransaction
from acktree.spark.tasks.writing.record_transaction import RecordTransaction, Transaction, TransactionLost
from acktree.spark.tasks.writing.transactions import begin_transaction
from acktree.wire.header import HEADER, single_headers
from deadlines import stretched
from proxy import proxy_of

READ_TASK = ReadTaskName("source", 0, 7, "digest")
BATCH = BatchName("query", 3)
KINDS = (BatchTransaction, RecordTransaction)
PARTITIONS = 3
Open = Callable[..., Transaction]


@pytest.fixture
def topic(bootstrap: str, unique: str) -> str:
    return new_topic(bootstrap, unique)


def new_topic(bootstrap: str, name: str, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, PARTITIONS, config=settings)])[name].result()
    made = admin.create_topics([NewTopic(READ_TASK.topic, 1)])
    made[READ_TASK.topic].exception()  # it usually exists already
    return name


@pytest.fixture
def held(bootstrap: str, unique: str) -> Iterator[BatchCommits]:
    made = BatchCommits(bootstrap, {}, unique)
    yield made
    made.consumer.close()


@pytest.fixture(params=KINDS, ids=["batches", "records"])
def begun(request: pytest.FixtureRequest, bootstrap: str, unique: str, held: BatchCommits) -> Iterator[Open]:
    """Return a function that begins the transaction of a batch; each has the same transactional id."""
    opened: list[Transaction] = []

    def begin(number: int = BATCH.number, **user: str) -> Transaction:
        settings = {key.replace("_", "."): value for key, value in user.items()}
        opened.append(request.param(bootstrap, settings, unique))
        assert opened[-1].begin(BatchName("query", number), READ_TASK, held)
        return opened[-1]

    yield begin
    for transaction in opened:
        transaction.close()


def read(bootstrap: str, topic: str, at_least: int = 0) -> dict[int, list[tuple]]:
    """Return what readers of committed records see: partition to (value, key, headers)."""
    consumer: Consumer = make_consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.subscribe([topic])
    found: dict[int, list[tuple]] = {}
    ends: set[int] = set()
    deadline_s = time.monotonic() + stretched(30)
    while len(ends) < PARTITIONS or sum(map(len, found.values())) < at_least:
        assert time.monotonic() < deadline_s, (ends, found)
        for record in consumer.consume(1000, 0.5):
            if record.error():
                ends.add(record.partition())
                continue
            found.setdefault(record.partition(), []).append(
                (record.value(), record.key(), record.headers() or [])
            )
    consumer.close()
    return found


def produce_one(transaction: Transaction, topic: str, value: bytes) -> None:
    transaction.produce(topic, value)
    transaction.serve()


def write(transaction: Transaction, topic: str, *values: bytes) -> None:
    transaction.produce_rows(topic, Rows(values))
    transaction.flush_and_commit()


def test_rows_and_records_become_readable_unchanged_when_committed(
    begun: Open, bootstrap: str, topic: str, held: BatchCommits
):
    transaction = begun()
    own = single_headers(1, 1, np.arange(1, 4, dtype=np.uint64), np.arange(1, 4, dtype=np.uint64))
    keyed = Rows([b"a", None, b"c"], [b"k1", b"k2", b"k3"], own)
    assert transaction.produce_rows(topic, keyed) == []
    pairs = [("user", b"x"), ("user", None), ("other", "text")]
    transaction.produce(topic, "single", b"k1", pairs)
    transaction.produce(topic, b"bare", None, None)
    assert transaction.produce_rows(topic, Rows(["text"], [b"k1"])) == []
    transaction.send(topic, 2, b"control")
    transaction.serve()
    assert read(bootstrap, topic) == {}
    transaction.flush_and_commit()
    seen = read(bootstrap, topic)
    rows = [row for partition in seen.values() for row in partition]
    assert len(rows) == 7
    for value, key, header in zip([b"a", None, b"c"], [b"k1", b"k2", b"k3"], own.tolist(), strict=True):
        assert (value, key, [(HEADER, np.array(header, own.dtype).tobytes())]) in rows
    assert (b"bare", None, []) in rows
    assert (b"control", None, []) in seen[2]
    (home,) = (partition for partition, there in seen.items() if any(row[1] == b"k1" for row in there))
    sent = [("user", b"x"), ("user", None), ("other", b"text")]
    of_k1 = [(value, headers[-1:]) for value, key, headers in seen[home] if key == b"k1"]
    assert of_k1[1:] == [(b"single", sent[-1:]), (b"text", [])]
    assert (b"single", b"k1", sent) in rows
    assert not transaction.begin(BATCH, READ_TASK, held)


def test_keys_have_the_same_partition_whichever_producer_writes(
    bootstrap: str, unique: str, held: BatchCommits
):
    homes = []
    for kind in KINDS:
        topic = new_topic(bootstrap, f"{unique}-{kind.__name__}")
        transaction = kind(bootstrap, {}, topic)
        assert transaction.begin(BatchName(topic, 1), READ_TASK, held)
        keys = [b"", *(b"%d" % number * (number % 5 + 1) for number in range(200))]
        transaction.produce_rows(topic, Rows([b"v"] * len(keys), keys))
        transaction.flush_and_commit()
        transaction.close()
        homes.append(
            {row[1]: partition for partition, rows in read(bootstrap, topic).items() for row in rows}
        )
    assert homes[0] == homes[1]
    assert len(homes[0]) == 201


def test_nothing_of_an_aborted_transaction_is_readable(
    begun: Open, bootstrap: str, topic: str, held: BatchCommits
):
    transaction = begun()
    transaction.produce_rows(topic, Rows([b"never"] * 10_000))
    transaction.produce(topic, b"never")
    transaction.send(topic, 1, b"never")
    transaction.abort()
    assert transaction.is_spent
    after = begun()
    after.produce_rows(topic, Rows([b"seen"]))
    after.flush_and_commit()
    assert [row[0] for rows in read(bootstrap, topic, 1).values() for row in rows] == [b"seen"]


@pytest.mark.promise("a batch takes longer than `offsets.retention.minutes`")
def test_a_batch_whose_commit_record_has_expired_is_written_again(
    begun: Open, bootstrap: str, topic: str, held: BatchCommits
):
    first = begun()
    write(first, topic, b"row")
    assert not first.begin(BATCH, READ_TASK, held)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_consumer_groups([held.group])[held.group].result()
    write(begun(), topic, b"row")
    assert [row[0] for rows in read(bootstrap, topic, 2).values() for row in rows] == [b"row", b"row"]


def test_a_later_transaction_fences_an_earlier_one(
    begun: Open, bootstrap: str, topic: str, held: BatchCommits
):
    zombie = begun()
    zombie.produce_rows(topic, Rows([b"zombie"] * 100))
    heir = begun()
    # a record that arrives after the heir's beginning meets a partition without an open transaction
    with pytest.raises((TransactionLost, DeliveryFailed), match=r"fenced|in an invalid state"):
        zombie.flush_and_commit()
    zombie.abort()
    heir.produce_rows(topic, Rows([b"heir"]))
    heir.flush_and_commit()
    assert [row[0] for rows in read(bootstrap, topic, 1).values() for row in rows] == [b"heir"]
    assert not heir.begin(BATCH, READ_TASK, held)


def test_a_fenced_producer_that_begins_again_gets_an_error(begun: Open, topic: str, held: BatchCommits):
    zombie = begun()
    zombie.flush_and_commit()
    begun(number=4).flush_and_commit()
    with pytest.raises(KafkaException, match="fenced"):
        zombie.begin(BatchName("query", 5), READ_TASK, held)


def test_one_producer_serves_batch_after_batch(begun: Open, bootstrap: str, topic: str, held: BatchCommits):
    transaction = begun(number=1)
    for number in range(2, 22):
        transaction.produce_rows(topic, Rows([b"%d" % number] * 50))
        transaction.flush_and_commit()
        assert not transaction.is_spent
        assert transaction.begin(BatchName("query", number), READ_TASK, held)
    transaction.flush_and_commit()
    assert sum(map(len, read(bootstrap, topic, 1000).values())) == 1000


def test_a_record_that_is_too_large_is_reported_as_such(begun: Open, bootstrap: str, topic: str):
    transaction = begun()
    ((row, error),) = transaction.produce_rows(topic, Rows([b"small", b"x" * 1_000_001]))
    assert row == 1
    assert isinstance(error, TooLarge)
    with pytest.raises(TooLarge, match="too large for topic"):
        produce_one(transaction, topic, b"x" * 1_000_001)


def test_a_larger_limit_set_by_the_user_applies(begun: Open, bootstrap: str, unique: str):
    topic = new_topic(bootstrap, unique, max_message_bytes="3000000")
    transaction = begun(message_max_bytes="2500000")
    assert transaction.produce_rows(topic, Rows([b"x" * 2_000_000])) == []
    transaction.flush_and_commit()
    assert sum(map(len, read(bootstrap, topic, 1).values())) == 1


def test_a_smaller_limit_set_by_the_user_bounds_the_batches(begun: Open, bootstrap: str, unique: str):
    """A topic may take less at once than a batch has by default; what it is has to be said."""
    topic = new_topic(bootstrap, unique, max_message_bytes="150000")
    transaction = begun(message_max_bytes="140000")
    assert transaction.produce_rows(topic, Rows([b"x" * 1_000] * 900)) == []
    transaction.flush_and_commit()
    assert sum(map(len, read(bootstrap, topic, 900).values())) == 900


def test_a_batch_that_the_broker_refuses_fails_the_task(begun: Open, bootstrap: str, unique: str):
    topic = new_topic(bootstrap, unique, max_message_bytes="1000")
    transaction = begun()
    with pytest.raises(DeliveryFailed, match=f"did not accept a record for topic {topic}: .*too large"):
        write(transaction, topic, b"x" * 2_000)
    transaction.abort()


def test_a_partition_created_later_is_found(begun: Open, bootstrap: str, topic: str):
    transaction = begun()
    transaction.send(topic, 0, b"known")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result()
    transaction.send(topic, PARTITIONS, b"new")
    transaction.flush_and_commit()
    assert [row[0] for row in read(bootstrap, topic, 2)[PARTITIONS]] == [b"new"]


def test_large_records_that_are_produced_one_by_one_do_not_wait_for_many(
    bootstrap: str, unique: str, topic: str, held: BatchCommits, monkeypatch: pytest.MonkeyPatch
):
    sent: list[int] = []
    send = BatchProducer.send

    def counted(producer: BatchProducer, batches: Addressed) -> None:
        sent.append(sum(batch.record_count() for _, _, batch in batches))
        send(producer, batches)

    monkeypatch.setattr(BatchProducer, "send", counted)
    transaction = BatchTransaction(bootstrap, {}, unique)
    assert transaction.begin(BATCH, READ_TASK, held)
    for _ in range(80):
        transaction.produce(topic, b"x" * 500_000)
    transaction.flush_and_commit()
    transaction.close()
    assert sum(sent) == 80
    assert max(sent) * 500_000 <= SINGLE_BYTES + 500_000


def test_a_partition_that_never_appears_is_an_error(
    bootstrap: str, unique: str, topic: str, held: BatchCommits, monkeypatch: pytest.MonkeyPatch
):
    transaction = BatchTransaction(bootstrap, {}, unique)
    assert transaction.begin(BATCH, READ_TASK, held)
    monkeypatch.setattr(BatchTransaction, "growth_timeout_s", 0.5)
    with pytest.raises(MissingPartition, match=f"topic {topic} has no partition 9.* apply the topology"):
        transaction.send(topic, 9, b"nowhere")
    transaction.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [BatchTransaction, RecordTransaction])
def test_records_are_written_once_even_if_the_broker_is_killed_meanwhile(
    kind: type, own_broker: Callable[..., LocalBroker], unique: str
):
    broker = own_broker()
    topic = new_topic(broker.bootstrap, unique)
    held = BatchCommits(broker.bootstrap, {}, unique)
    transaction = kind(broker.bootstrap, {}, unique)
    assert transaction.begin(BATCH, READ_TASK, held)
    values = [b"%d" % number for number in range(60_000)]
    transaction.produce_rows(topic, Rows(values[:30_000]))
    broker.kill()
    with ThreadPoolExecutor(1) as task:  # the broker ends with the thread that starts it
        rest = task.submit(write, transaction, topic, *values[30_000:])
        broker.start()
        rest.result()
    seen = sorted(int(row[0]) for rows in read(broker.bootstrap, topic, 60_000).values() for row in rows)
    assert seen == list(range(60_000))
    assert held.is_set(commit_of_task(BATCH, READ_TASK))
    transaction.close()
    held.consumer.close()


def test_an_unreachable_broker_is_an_error():
    with pytest.raises(BrokerUnreachable, match=r"no Kafka broker answers at 127\.0\.0\.1:9"):
        BatchTransaction("127.0.0.1:9", {}, "x")


def test_a_setting_that_breaks_a_guarantee_is_refused():
    with pytest.raises(RefusedSetting, match="acks=1 is refused"):
        BatchTransaction("127.0.0.1:9", {"acks": "1"}, "x")


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"compression.type": "zstd"}, "compression.type is set"),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"}, "SASL mechanism"),
        ({"oauth_cb": "auth:token"}, "oauth_cb is set, which only librdkafka supports"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
            "needs a username and a password",
        ),
        ({"message.max.bytes": "many"}, "is not a number"),
        ({"transaction.timeout.ms": "long"}, "is not a number"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere.pem"}, "cannot read the certificates"),
    ],
)
def test_settings_that_batches_do_not_support_are_left_to_librdkafka(user: dict[str, str], said: str):
    with pytest.raises(NativeOff, match=said):
        BatchTransaction("127.0.0.1:9", user, "x")


@pytest.fixture
def kept() -> Iterator[PerProcess[Transaction]]:
    """The transactions that are kept for the tasks to come, closed at the end."""
    yield transactions.open_transactions
    for transaction in transactions.open_transactions.pop_oldest():
        transaction.close()


def test_a_process_keeps_the_transactions_of_many_partitions(
    bootstrap: str, unique: str, kept: PerProcess[Transaction]
):
    admin, partitions = AdminClient({"bootstrap.servers": bootstrap}), 20
    admin.create_topics([NewTopic(unique, partitions)])[unique].result()

    def write_all(number: int) -> list[Transaction | None]:
        batch = BatchName("query", number)
        tasks = (ReadTaskName(unique, partition, number, "digest") for partition in range(partitions))
        begun = [begin_transaction(bootstrap, {}, unique, batch, task) for task in tasks]
        for transaction in begun:
            assert transaction is not None
            transaction.flush_and_commit()
        return begun

    first = write_all(1)
    assert write_all(2) == first


def test_consumer_settings_change_nothing():
    plain = batch_client_settings({"bootstrap.servers": "a:1"})
    mixed = {"fetch.min.bytes": "9", "max.poll.interval.ms": "9", "queued.min.messages": "9"}
    assert batch_client_settings({"bootstrap.servers": "a:1", **mixed}) == plain


def test_a_task_chooses_its_producer_by_its_properties(
    bootstrap: str, unique: str, topic: str, kept: dict, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "acktree.spark")
    plain = begin_transaction(bootstrap, {}, unique, BATCH, READ_TASK)
    assert isinstance(plain, BatchTransaction)
    plain.flush_and_commit()
    compressed = begin_transaction(bootstrap, {"compression.type": "lz4"}, f"{unique}-lz4", BATCH, READ_TASK)
    assert isinstance(compressed, RecordTransaction)
    compressed.flush_and_commit()
    assert "record by record: compression.type is set" in caplog.text


def test_without_its_packages_a_task_writes_record_by_record(
    bootstrap: str, unique: str, topic: str, kept: PerProcess[Transaction], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "acktree.spark.tasks.writing.batch_transaction", None)
    begun = begin_transaction(bootstrap, {}, unique, BATCH, READ_TASK)
    assert isinstance(begun, RecordTransaction)
    begun.flush_and_commit()


def test_a_producer_is_reused_until_it_is_fenced_or_has_written_a_lot(
    bootstrap: str, unique: str, topic: str, kept: PerProcess[Transaction], monkeypatch: pytest.MonkeyPatch
):
    def begin(number: int) -> Transaction:
        begun = begin_transaction(bootstrap, {}, unique, BatchName("query", number), READ_TASK)
        assert begun is not None
        return begun

    first = begin(1)
    first.flush_and_commit()
    assert begin(2) is first
    first.produce_rows(topic, Rows([b"v"] * 11))
    monkeypatch.setattr(batch_transaction, "MAX_RECORDS", 10)
    first.flush_and_commit()
    second = begin(3)
    assert second is not first
    second.flush_and_commit()
    stranger = BatchTransaction(bootstrap, {}, f"{unique}.stage-{READ_TASK.topic}-{READ_TASK.partition}")
    third = begin(4)
    assert third not in (first, second)
    third.flush_and_commit()
    assert begin_transaction(bootstrap, {}, unique, BatchName("query", 4), READ_TASK) is None
    stranger.close()
    assert list(kept.pop_oldest()) == [third]
    third.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_does_not_pass_says_its_size_and_its_time(
    kind: type[Transaction], bootstrap: str, topic: str, unique: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(record_transaction, "FLUSH_TIMEOUT_S", 8.0)
    monkeypatch.setattr(batch_transaction, "FLUSH_TIMEOUT_S", 8.0)
    with proxy_of(bootstrap) as proxy:
        held = BatchCommits(proxy.bootstrap, {}, unique)
        transaction = kind(proxy.bootstrap, {"transaction.timeout.ms": "5000"}, unique)
        assert transaction.begin(BATCH, READ_TASK, held)
        proxy.bytes_per_s = 100_000
        for _ in range(40):
            transaction.produce(topic, b"x" * 50_000)
        size_and_time = r"transaction of 2\.\d MB was open for \d+ s"
        with pytest.raises((DeliveryFailed, TransactionLost), match=size_and_time):
            transaction.flush_and_commit()
        proxy.bytes_per_s = 1e9
        transaction.abort()
        transaction.close()
        held.consumer.close()
