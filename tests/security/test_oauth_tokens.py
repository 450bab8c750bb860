"""OAUTHBEARER with a function of the user's: every kind of client gets in, and no token is shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.console.main import main
from acktree.console.rights import Right
from acktree.core.errors import NotAuthenticated
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.kafka.settings import consumer_settings, producer_settings
from acktree.spark.shared.batch_commits import BatchName, ReadTaskName
from acktree.spark.tasks.writing.record_transaction import TransactionLost
from acktree.spark.tasks.writing.transactions import begin_transaction, open_transactions
from deadlines import stretched
from security import tokens
from security.secure_broker import WAIT_S, SecureBroker

ACKTREE = Path(sys.executable).with_name("acktree")
RUN_S = stretched(300)
TASK_ATTEMPTS = 4
"""How often Spark runs a task before it fails the query."""
RENEWALS = 8
"""Of two clients: enough that each outlives some tokens."""
LINES = 20
TOPOLOGY = """
name = "token"
ackers = 0
[spouts.lines]
topics = ["token.lines"]
emits = ["token.words"]
"""
JOBS = """
def words(lines):
    return lines.select("value", "anchors")
"""
EVERYTHING = (
    Right("topic", "token.", "All", is_prefix=True),
    Right("group", "token.", "All", is_prefix=True),
    Right("transactional-id", "token.", "All", is_prefix=True),
)

BEARER = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def properties(function: str) -> dict[str, str]:
    return {**BEARER, "oauth_cb": f"security.tokens:{function}", "sasl.oauthbearer.config": "the config"}


@pytest.mark.parametrize("function", ["token", "short"])
def test_every_client_authenticates_with_tokens_of_the_function(
    secure: SecureBroker, unique: str, function: str
):
    secure.admin.create_topics([NewTopic(unique, 1)])[unique].result()
    secure.allow(tokens.USER, [Right("topic", unique, "All"), Right("group", unique, "Read")])
    tokens.CALLS.clear()
    user = properties(function)
    assert unique in make_admin(secure.open, user).list_topics(timeout=WAIT_S).topics
    producer = make_producer(producer_settings(secure.open, user))
    producer.produce(unique, b"hello")
    assert producer.flush(WAIT_S) == 0
    consumer = make_consumer(consumer_settings(secure.open, unique, user))
    consumer.assign([TopicPartition(unique, 0, 0)])
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.value() == b"hello"
    consumer.close()
    assert set(tokens.CALLS) == {"the config"}
    assert len(tokens.CALLS) >= 3


def test_a_token_is_renewed_while_no_thread_polls_the_client(secure: SecureBroker):
    admin = make_admin(secure.open, properties("short"))
    while tokens.CALLED.acquire(blocking=False):
        pass
    assert tokens.CALLED.acquire(timeout=WAIT_S)
    assert admin.list_topics(timeout=WAIT_S)


def test_transactions_of_tasks_survive_the_end_of_connections_with_an_old_token(
    secure: SecureBroker, unique: str
):
    """A broker with connections.max.reauth.ms closes a connection whose client does not renew its token."""
    secure.admin.create_topics([NewTopic(unique, 1)])[unique].result()
    kinds = ("topic", "group", "transactional-id")
    secure.allow(tokens.USER, [Right(kind, unique, "All", is_prefix=True) for kind in kinds])
    before, number, user = len(tokens.CALLS), 0, properties("short")
    lost = 0
    while len(tokens.CALLS) < before + RENEWALS:
        number += 1
        batch, read_task = BatchName("query", number), ReadTaskName(unique, 0, number, "digest")
        transaction = begin_transaction(secure.open, user, unique, batch, read_task)
        assert transaction is not None
        transaction.produce(unique, b"%d" % number)
        try:
            transaction.flush_and_commit()
        except (
            TransactionLost
        ):  # a commit met the renewal; Spark runs the task again, up to four times in a row
            transaction.abort()
            lost += 1
            assert lost < TASK_ATTEMPTS
        else:
            lost = 0
    for kept in open_transactions.pop_oldest():
        kept.close()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("failing", "RuntimeError: no token today"),
        pytest.param("wrong", "TypeError: it must return a str and a number", marks=pytest.mark.slow),
    ],
)
def test_a_function_without_a_token_is_reported_in_one_sentence(
    secure: SecureBroker, tmp_path: Path, function: str, says: str
):
    for make in (
        lambda: make_admin(secure.open, properties(function)),
        lambda: make_producer(producer_settings(secure.open, properties(function))),
    ):
        with pytest.raises(NotAuthenticated, match=says) as refusal:
            make()
        assert tokens.SECRET not in str(refusal.value)
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties(function).items()))
    result = CliRunner().invoke(main, ["topology", "show", "-b", secure.open, "--command-config", str(path)])
    assert result.exit_code == 2
    assert f"error: no token from oauth_cb=security.tokens:{function}: {says}" in result.output


def test_the_doctor_authenticates_with_a_token(secure: SecureBroker):
    user = properties("token")
    options = (part for key, value in user.items() for part in ("-X", f"{key}={value}"))
    result = CliRunner().invoke(main, ["doctor", "-b", secure.open, *options])
    assert result.exit_code == 0, result.output
    assert "not allowed to ask" in result.output


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_driver_and_executors_of_spark_import_the_function_by_its_name(secure: SecureBroker, tmp_path: Path):
    secure.admin.create_topics([NewTopic("token.lines", 2)])["token.lines"].result()
    secure.allow(tokens.USER, EVERYTHING)
    producer = make_producer(producer_settings(secure.plain, {}))
    for number in range(LINES):
        producer.produce("token.lines", b"line %d" % number)
    assert producer.flush(WAIT_S) == 0
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "auth.py").write_text(Path(tokens.__file__).read_text())
    settings = {**BEARER, "oauth_cb": "auth:token"}
    (tmp_path / "client.properties").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    run = ["spark", "run", "jobs:words", "--topology", "token", "--spout", "lines"]
    for command in (
        ["topology", "apply", "topology.toml"],
        [*run, "--trigger", "available-now", "--checkpoint", "checkpoint"],
    ):
        done = subprocess.run(
            [ACKTREE, *command, "-b", secure.open, "--command-config", "client.properties"],
            cwd=tmp_path,
            env={**os.environ},
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert written(secure.plain, partitions=2) == LINES
    shown = b"".join(path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert tokens.BEGIN.encode() not in shown


def written(address: str, partitions: int) -> int:
    """Return how many words were committed."""
    reader = make_consumer(consumer_settings(address, "token.look", {}, enable_partition_eof=True))
    reader.assign([TopicPartition("token.words", number, 0) for number in range(partitions)])
    count = ends = 0
    while ends < partitions:
        message = reader.poll(WAIT_S)
        assert message is not None
        ends += message.error() is not None
        count += message.error() is None
    reader.close()
    return count
