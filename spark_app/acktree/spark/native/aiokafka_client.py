"""Translates librdkafka's properties and errors for aiokafka.

Invariant: a property is translated with its exact meaning or not at all; then the reason names it, and
librdkafka, which knows them all, does the work.
"""

import logging
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaTimeoutError,
    NodeNotReadyError,
    ProducerFenced,
)
from aiokafka.errors import KafkaError as BatchClientError
from aiokafka.producer.message_accumulator import BatchBuilder
from confluent_kafka import KafkaError, KafkaException

from acktree.spark.native.switch import NativeOff

MESSAGE_BYTES = 1_000_000
"""The largest record, as librdkafka's ``message.max.bytes``."""
RETRY_BACKOFF_MS = 50
_LIMITS = ("message.max.bytes", "batch.size")
_SECURE = ("SSL", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_NAMES = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "transactional.id": "transactional_id",
    "transaction.timeout.ms": "transaction_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
_NUMBERS = {"transaction_timeout_ms", "metadata_max_age_ms"}
_SILENT = ("log.connection.close",)
_UNUSED = (
    "auto.",
    "enable.auto.",
    "fetch.",
    "group.",
    "heartbeat.",
    "max.poll.",
    "queued.",
    "schema.registry.",
    "session.",
)
"""Prefixes of properties that a producer does not use: all clients get the same properties."""
_FILES = {
    "ssl.ca.location": "cafile",
    "ssl.certificate.location": "certfile",
    "ssl.key.location": "keyfile",
    "ssl.key.password": "password",
}


logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # as librdkafka's: where logs are wanted


_PRIVATE_PARTS = (
    (BatchBuilder, "_build"),
    (BatchBuilder, "_set_producer_state"),
    (BatchBuilder, "record_count"),
    (AIOKafkaClient, "coordinator_lookup"),
    (AIOKafkaProducer, "send_batch"),
)
"""What whole batches stand in for."""

if missing := [f"{owner.__name__}.{name}" for owner, name in _PRIVATE_PARTS if not hasattr(owner, name)]:
    raise ImportError(f"this aiokafka lacks {missing}, which whole batches need")


class Sizes(NamedTuple):
    """The largest record, and the largest batch of several, in bytes."""

    record_bytes: int
    batch_bytes: int


def batch_client_settings(properties: Mapping[str, str]) -> tuple[dict[str, Any], Sizes]:
    """Return the arguments of an AIOKafkaProducer, and how large records and batches may be.

    Raises:
        NativeOff: it has no such setting, or none that is known to mean the same.
    """
    settings: dict[str, Any] = {"acks": "all", "retry_backoff_ms": RETRY_BACKOFF_MS}
    files: dict[str, str] = {}
    for name, value in properties.items():
        if name in _FILES:
            files[_FILES[name]] = value
        elif name in _NAMES:
            settings[_NAMES[name]] = value
        elif name not in _LIMITS and name not in _SILENT and not name.startswith(_UNUSED):
            raise NativeOff(f"{name} is set, which only librdkafka supports")
    protocol = settings["security_protocol"] = settings.get("security_protocol", "PLAINTEXT").upper()
    if protocol.startswith("SASL") and settings.get("sasl_mechanism") not in _MECHANISMS:
        raise NativeOff("its SASL mechanism is not one of " + ", ".join(_MECHANISMS))
    if protocol.startswith("SASL") and not settings.keys() >= {"sasl_plain_username", "sasl_plain_password"}:
        raise NativeOff("SASL needs a username and a password")
    if "://" in settings["bootstrap_servers"]:
        raise NativeOff("an address has a protocol, which only librdkafka supports")
    try:
        for name in _NUMBERS & settings.keys():
            settings[name] = int(settings[name])
        record_bytes, batch_bytes = (int(properties.get(name, MESSAGE_BYTES)) for name in _LIMITS)
    except ValueError as error:
        raise NativeOff(f"a property is not a number: {error}") from error
    if protocol in _SECURE:
        settings["ssl_context"] = _tls(**files)
    return settings, Sizes(record_bytes, min(record_bytes, batch_bytes))


def _tls(
    cafile: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    password: str | None = None,
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=cafile)
        if certfile is not None:
            context.load_cert_chain(certfile, keyfile, password)
    except OSError as error:
        raise NativeOff(f"Python's ssl cannot read the certificates or the key: {error}") from error
    return context


@contextmanager
def as_kafka_exceptions() -> Iterator[None]:
    """Raise aiokafka's errors as the KafkaException that librdkafka would raise."""
    try:
        yield
    except BatchClientError as error:
        raise KafkaException(as_kafka_error(error)) from error
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the broker is taking too long")) from error


def as_kafka_error(error: BaseException) -> KafkaError:
    """Return the error that librdkafka would have raised."""
    if isinstance(error, (KafkaTimeoutError, TimeoutError)):
        return KafkaError(KafkaError._TIMED_OUT, str(error))
    if isinstance(error, ProducerFenced):
        return KafkaError(KafkaError._FENCED)
    if isinstance(error, AuthenticationFailedError):
        return KafkaError(KafkaError._AUTHENTICATION, str(error))
    if isinstance(error, (KafkaConnectionError, NodeNotReadyError)):
        return KafkaError(KafkaError._TRANSPORT, str(error))
    code: int | None = getattr(error, "errno", None)
    return KafkaError(KafkaError._FAIL, str(error)) if code is None else KafkaError(code)
