"""librdkafka clients with the settings our promises rest on, and its errors as clear sentences.

Invariant: a user's property passes through untouched unless it would break a promise; then it is refused
with the reason, never overridden in silence.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from acktree.schemas.errors import AcktreeError, BrokerRefused, BrokerUnreachable, RefusedSetting

Settings = Mapping[str, str]

BROKER_TIMEOUT_S = 10.0

_log = logging.getLogger("acktree.kafka")
_log.addHandler(logging.NullHandler())

_COMMON = {"log.connection.close": False, "client.id": "acktree"}

_CONSUMER: dict[str, tuple[Any, str]] = {
    "enable.auto.commit": (False, "offsets are committed when the work behind them is done, not by a clock"),
    "enable.auto.offset.store": (False, "offsets are committed when the work behind them is done"),
    "isolation.level": ("read_committed", "aborted transactions must not be taken for records"),
    "check.crcs": (True, "a damaged record must not be folded"),
}
_PRODUCER: dict[str, tuple[Any, str]] = {
    "enable.idempotence": (True, "a retry inside the client must not duplicate or reorder records"),
    "acks": ("all", "an acknowledged record must survive the loss of a broker"),
}
_OURS = {
    "group.id": "it is part of the topology: TOPOLOGY.COMPONENT",
    "bootstrap.servers": "give it with --bootstrap-server",
    "transactional.id": "it fences zombies and is chosen per process",
}


def _merge(base: dict[str, Any], promised: Mapping[str, tuple[Any, str]], user: Settings) -> dict[str, Any]:
    for key, value in user.items():
        if key in _OURS:
            raise RefusedSetting(f"{key}={value} is refused: {_OURS[key]}")
        if key in promised and str(value).lower() not in (str(promised[key][0]).lower(), _alias(key)):
            needed, reason = promised[key]
            raise RefusedSetting(f"{key}={value} is refused: {reason}; leave it at {str(needed).lower()}")
    return {**base, **user, **{key: needed for key, (needed, _) in promised.items()}}


def _alias(key: str) -> str:
    return "-1" if key == "acks" else ""


def consumer_settings(bootstrap: str, group: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a consumer; ``ours`` has underscores for dots and wins over the defaults.

    Raises:
        RefusedSetting: a user setting would break a promise.
    """
    base = {
        **_COMMON,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 200_000,
        **{key.replace("_", "."): value for key, value in ours.items()},
    }
    return _merge(base, _CONSUMER, user)


def producer_settings(bootstrap: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a producer; ``ours`` has underscores for dots and wins over the defaults.

    Raises:
        RefusedSetting: a user setting would break a promise.
    """
    base = {
        **_COMMON,
        "bootstrap.servers": bootstrap,
        "linger.ms": 5,
        "partitioner": "murmur2_random",
        "delivery.report.only.error": True,
        "queue.buffering.max.messages": 500_000,
        **{key.replace("_", "."): value for key, value in ours.items()},
    }
    return _merge(base, _PRODUCER, user)


def admin_settings(bootstrap: str, user: Settings) -> dict[str, Any]:
    """Return the settings of an admin client: the user's connection and security properties."""
    mine = {key: value for key, value in user.items() if key not in (*_CONSUMER, *_PRODUCER)}
    return {**_COMMON, **mine, "bootstrap.servers": bootstrap}


def make_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Return a Consumer that logs to ``acktree.kafka``; a property that does not exist is refused."""
    with clear_settings():
        return Consumer(dict(settings), logger=_log)


def make_producer(settings: Mapping[str, Any]) -> Producer:
    """Return a Producer that logs to ``acktree.kafka``; a property that does not exist is refused."""
    with clear_settings():
        return Producer(dict(settings), logger=_log)


def make_admin(bootstrap: str, user: Settings) -> AdminClient:
    """Return an AdminClient that has spoken to the broker.

    Raises:
        BrokerUnreachable: no broker answers within BROKER_TIMEOUT_S.
    """
    with clear_settings():
        admin = AdminClient(admin_settings(bootstrap, user), logger=_log)
    with clear_errors(bootstrap):
        admin.list_topics(timeout=BROKER_TIMEOUT_S)
    return admin


@contextmanager
def clear_settings() -> Iterator[None]:
    """Turn librdkafka's refusal of a property into RefusedSetting."""
    try:
        yield
    except KafkaException as error:
        detail = error.args[0]
        raise RefusedSetting(detail.str() if isinstance(detail, KafkaError) else str(detail)) from error


_AWAY = frozenset(
    (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)
)


@contextmanager
def clear_errors(bootstrap: str) -> Iterator[None]:
    """Turn a KafkaException into BrokerUnreachable or BrokerRefused."""
    try:
        yield
    except KafkaException as error:
        raise as_clear_error(error.args[0], bootstrap) from error


def as_clear_error(error: Any, bootstrap: str) -> AcktreeError:
    """Return the acktree error that says what a KafkaError means."""
    if isinstance(error, KafkaError) and error.code() in _AWAY:
        return BrokerUnreachable(
            f"no Kafka broker answers at {bootstrap} ({error.str()}); check the address and that it runs"
        )
    return BrokerRefused(f"the broker at {bootstrap} refused: {error.str() if error else error}")
