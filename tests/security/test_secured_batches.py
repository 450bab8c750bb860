"""Whole batches through TLS, SASL and an authorizer: let in by the same properties as all other clients."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from confluent_kafka.admin import NewTopic

from acktree.console.rights import Right
from acktree.core.errors import NotAuthorized
from acktree.core.kafka.errors import clear_errors
from acktree.producers.columns import Rows
from acktree.producers.errors import DeliveryFailed
from acktree.spark.shared.batch_commits import BatchCommits, BatchName, ReadTaskName
from acktree.spark.tasks.writing.batch_transaction import BatchTransaction
from acktree.wire.errors import AcktreeError
from security.secure_broker import PASSWORD, SecureBroker

NEEDED = (
    Right("topic", "{}", "Write"),
    Right("topic", "{}", "Describe"),
    Right("topic", "{}", "Read"),
    Right("group", "{}.stage", "Read"),
    Right("transactional-id", "{}", "Write"),
    Right("transactional-id", "{}", "Describe"),
)
BATCH = BatchName("query", 1)

Way = Callable[[SecureBroker, str], tuple[str, dict[str, str]]]


def by_scram(secure: SecureBroker, user: str) -> tuple[str, dict[str, str]]:
    secure.add_user(user)
    return secure.scram, secure.properties(user)


def by_plain(secure: SecureBroker, user: str) -> tuple[str, dict[str, str]]:
    return secure.open, {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "plain",
        "sasl.password": PASSWORD,
    }


def by_certificate(secure: SecureBroker, user: str) -> tuple[str, dict[str, str]]:
    return secure.mutual, secure.certificate(user)


def principal(way: Way, user: str) -> str:
    return {by_scram: user, by_plain: "plain", by_certificate: "*"}[way]


def write(address: str, user: dict[str, str], topic: str) -> None:
    read_task = ReadTaskName(topic, 0, 1, "digest")
    held = BatchCommits(address, user, topic)
    transaction = BatchTransaction(address, user, topic)
    try:
        with clear_errors(address):
            assert transaction.begin(BATCH, read_task, held)
            transaction.produce_rows(topic, Rows([b"value"]))
            transaction.flush_and_commit()
            assert not transaction.begin(BATCH, read_task, held)
    finally:
        transaction.close()
        held.consumer.close()


def prepare(
    secure: SecureBroker, way: Way, topic: str, needed: tuple[Right, ...]
) -> tuple[str, dict[str, str]]:
    secure.admin.create_topics([NewTopic(topic, 1)])[topic].result()
    address, user = way(secure, topic)
    secure.allow(principal(way, topic), [replace(each, name=each.name.format(topic)) for each in needed])
    return address, user


@pytest.mark.parametrize("way", [by_scram, by_plain, by_certificate])
def test_a_transaction_is_written_with_each_mechanism(secure: SecureBroker, unique: str, way: Way):
    address, user = prepare(secure, way, unique, NEEDED)
    write(address, user, unique)


@pytest.mark.parametrize("missing", [Right("topic", "{}", "Write"), *NEEDED[4:]], ids=str)
def test_a_missing_right_is_an_error(secure: SecureBroker, unique: str, missing: Right):
    needed = tuple(each for each in NEEDED if each.resource != missing.resource or each.name != missing.name)
    address, user = prepare(secure, by_scram, unique, needed)
    with pytest.raises((NotAuthorized, DeliveryFailed), match="acktree acl plan"):
        write(address, user, unique)


def test_wrong_passwords_and_untrusted_certificates_are_refused_without_naming_them(
    secure: SecureBroker, unique: str
):
    address, user = by_scram(secure, unique)
    with pytest.raises(AcktreeError) as refusal:
        BatchTransaction(address, {**user, "sasl.password": "wrong-canary"}, unique)
    assert "canary" not in str(refusal.value)
    with pytest.raises(AcktreeError):
        BatchTransaction(secure.mutual, secure.certificate(unique, secure.stranger), unique)


@pytest.mark.parametrize("owner", [AIOKafkaProducer, AIOKafkaClient], ids=["stop", "stop and close"])
def test_a_failure_is_reported_even_if_aiokafka_raises_its_own_tasks_cancellation(
    secure: SecureBroker, unique: str, monkeypatch: pytest.MonkeyPatch, owner: type
):
    needed = tuple(each for each in NEEDED if each.operation != "Write" or each.resource != "topic")
    address, user = prepare(secure, by_scram, unique, needed)
    stop = AIOKafkaProducer.stop

    async def stop_and_say_so(producer: AIOKafkaProducer) -> None:
        await stop(producer)
        raise asyncio.CancelledError

    close = AIOKafkaClient.close

    async def close_and_say_so(client: AIOKafkaClient) -> None:
        await close(client)
        raise asyncio.CancelledError

    monkeypatch.setattr(AIOKafkaProducer, "stop", stop_and_say_so)
    if owner is AIOKafkaClient:
        monkeypatch.setattr(AIOKafkaClient, "close", close_and_say_so)
    with pytest.raises((NotAuthorized, DeliveryFailed), match="authorization failed"):
        write(address, user, unique)
