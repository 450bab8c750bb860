"""librdkafka clients with the settings that the guarantees need, and its errors as clear sentences.

Invariant: a user's property passes through untouched unless it would break a guarantee; then it is refused
with the reason, never overridden silently.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from acktree.schemas.errors import (
    AcktreeError,
    BrokerRefused,
    BrokerUnreachable,
    MissingTopic,
    NotAuthenticated,
    NotAuthorized,
    RefusedSetting,
)
from acktree.schemas.refusals import ClientErrors

Settings = Mapping[str, str]
Answer = TypeVar("Answer")

BROKER_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 60.0
"""How long a starting process waits for a broker that answers but is not ready yet."""
READY_PAUSE_S = 0.2
FIRST_CHECK_S = 1.0
"""How long a new client waits before it first checks whether the broker has refused it."""
NEW_TOPIC_S = 3.0
"""How long a topic that was just created may be missing from the answers of a busy broker."""

LEADER_MAX_AGE_MS = 5_000
"""How long an admin client uses cached partition leaders.

It does not refresh them when a leader epoch is refused. With librdkafka's default of 15 minutes, requests for
log ends would fail that long after a broker restart, and an acker's clock would stop at the log end.
"""

_log = logging.getLogger("acktree.kafka")
_log.addHandler(logging.NullHandler())

_COMMON = {"log.connection.close": False, "client.id": "acktree"}

_CONSUMER: dict[str, tuple[Any, str]] = {
    "enable.auto.commit": (False, "offsets are committed when the work behind them is done, not by a clock"),
    "enable.auto.offset.store": (False, "offsets are committed when the work behind them is done"),
    "isolation.level": ("read_committed", "aborted transactions must not be taken for records"),
    "check.crcs": (True, "a record damaged on its way must be an error, not a tuple"),
    "auto.offset.reset": (
        "earliest",
        "what was written before the group's first commit would be skipped, and its trees never done",
    ),
}
_PRODUCER: dict[str, tuple[Any, str]] = {
    "enable.idempotence": (True, "a retry inside the client must not duplicate or reorder records"),
    "acks": ("all", "an acknowledged record must survive the loss of a broker"),
}
_OURS = {
    "group.id": "it is part of the topology: TOPOLOGY.COMPONENT",
    "bootstrap.servers": "give it with --bootstrap-server",
    "transactional.id": "it fences zombies and is chosen per process",
    "delivery.report.only.error": "delivery reports say what is in the log",
}


def _merge(base: dict[str, Any], promised: Mapping[str, tuple[Any, str]], user: Settings) -> dict[str, Any]:
    """Merge settings: ``base`` may override what is promised, the user's settings may not."""
    for key, value in user.items():
        if key in _OURS:
            raise RefusedSetting(f"{key}={value} is refused: {_OURS[key]}")
        if key in promised and str(value).lower() not in (str(promised[key][0]).lower(), _alias(key)):
            needed, reason = promised[key]
            raise RefusedSetting(f"{key}={value} is refused: {reason}; leave it at {str(needed).lower()}")
    kept = {key: value for key, (value, _) in promised.items()}
    return {**kept, **base, **{key: value for key, value in user.items() if key not in promised}}


def _alias(key: str) -> str:
    return "-1" if key == "acks" else ""


def consumer_settings(bootstrap: str, group: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a consumer; ``ours`` has underscores for dots and wins over the defaults.

    Raises:
        RefusedSetting: a user setting would break a guarantee.
    """
    base = {
        **_COMMON,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 200_000,
        **{key.replace("_", "."): value for key, value in ours.items()},
    }
    return _merge(base, _CONSUMER, user)


def producer_settings(bootstrap: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a producer; ``ours`` has underscores for dots and wins over the defaults.

    Raises:
        RefusedSetting: a user setting would break a guarantee.
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
    return {**_COMMON, "metadata.max.age.ms": LEADER_MAX_AGE_MS, **mine, "bootstrap.servers": bootstrap}


def make_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Return a Consumer that logs to ``acktree.kafka``; a property that does not exist is refused."""
    with clear_settings():
        return Consumer(dict(settings), logger=_log)


def make_producer(settings: Mapping[str, Any]) -> Producer:
    """Return a Producer that logs to ``acktree.kafka``; a property that does not exist is refused."""
    with clear_settings():
        return Producer(dict(settings), logger=_log)


def make_admin(bootstrap: str, user: Settings) -> AdminClient:
    """Return an AdminClient that has had an answer from the broker.

    Raises:
        BrokerUnreachable: no broker answers within BROKER_TIMEOUT_S.
        NotAuthenticated: credentials or a certificate are refused; raised at once, not after the time-out.
    """
    errors = ClientErrors()
    with clear_settings():
        settings: dict[str, Any] = {**admin_settings(bootstrap, user), "error_cb": errors}
        admin = AdminClient(settings, logger=_log)
    deadline_s, wait_s = time.monotonic() + BROKER_TIMEOUT_S, FIRST_CHECK_S
    while True:
        try:
            admin.list_topics(timeout=wait_s)
            return admin
        except KafkaException as error:
            admin.poll(0)
            if (refusal := errors.refusal(bootstrap)) is not None:
                raise refusal from error
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise _unreachable(bootstrap, error.args[0], errors.hint()) from error
            wait_s = min(2 * wait_s, left_s)


def existing_topics(admin: AdminClient, bootstrap: str, topics: Collection[str]) -> set[str]:
    """Return which topics exist, whether or not the broker lists them.

    Raises:
        NotAuthorized: a topic may exist, and this principal may not see it.
        BrokerUnreachable, BrokerRefused: see there.
    """
    existing = set()
    with clear_errors(bootstrap):
        for topic, future in admin.describe_topics(TopicCollection(list(topics))).items() if topics else ():
            try:
                future.result(BROKER_TIMEOUT_S)
                existing.add(topic)
            except KafkaException as error:
                if is_forbidden(error.args[0]):
                    raise as_clear_error(error.args[0], bootstrap, f"topic {topic}") from error
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
    return existing


def refuse_missing(admin: AdminClient, bootstrap: str, topic: str, text: str) -> None:
    """Raise the reason why a topic is not in the broker's list, which omits topics that may not be seen.

    Returns if it exists after all: a broker may list a new topic only a moment after it was created.

    Raises:
        NotAuthorized: the topic may exist, and this principal may not see it.
        MissingTopic: it does not exist; ``text`` is the error text.
    """
    deadline_s = time.monotonic() + NEW_TOPIC_S
    while not existing_topics(admin, bootstrap, [topic]):
        if time.monotonic() > deadline_s:
            raise MissingTopic(text)
        admin.poll(0.1)


@contextmanager
def clear_settings() -> Iterator[None]:
    """Turn librdkafka's rejection of a property into RefusedSetting."""
    try:
        yield
    except KafkaException as error:
        detail = error.args[0]
        raise RefusedSetting(detail.str() if isinstance(detail, KafkaError) else str(detail)) from error


_AWAY = frozenset(
    (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)
)


_UNSETTLED = frozenset(
    (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._TIMED_OUT_QUEUE,
    )
)


def was_transient(error: BaseException) -> bool:
    """Return whether an acktree error was caused by a broker that is away or not ready yet."""
    cause = error.__cause__
    if not isinstance(cause, KafkaException) or not isinstance(cause.args[0], KafkaError):
        return False
    return is_transient(cause.args[0])


def is_not_ready(error: KafkaError) -> bool:
    """Return whether a broker answered that it is not ready yet: the request may be retried at once."""
    return error.retriable() or error.code() in _UNSETTLED


def is_transient(error: KafkaError) -> bool:
    """Return whether an error means only that the broker is away or not ready yet."""
    return error.code() in _AWAY or is_not_ready(error)


def retry_until_ready(ask: Callable[[], Answer], *, wait_if_away: bool = False) -> Answer:
    """Call ``ask``, and retry it while the broker says that it is not ready yet, for at most READY_TIMEOUT_S.

    After a start a broker answers while it still loads its groups and transactions. ``wait_if_away``: retry
    also while it does not answer, for callers that had an answer a moment ago.

    Raises:
        The last error of ``ask``; at once an error that waiting cannot fix.
    """
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return ask()
        except (KafkaException, AcktreeError) as error:
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException) or not isinstance(cause.args[0], KafkaError):
                raise
            passes = is_transient if wait_if_away else is_not_ready
            if not passes(cause.args[0]) or time.monotonic() > deadline_s:
                raise
            _log.warning("the broker is not ready yet: %s", error, extra={"action": "not_ready"})
            time.sleep(READY_PAUSE_S)


@contextmanager
def clear_errors(bootstrap: str, what: str = "") -> Iterator[None]:
    """Turn a KafkaException into BrokerUnreachable or BrokerRefused; ``what`` names what was requested."""
    try:
        yield
    except KafkaException as error:
        raise as_clear_error(error.args[0], bootstrap, what) from error


_FORBIDDEN = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)


def is_forbidden(error: Any) -> bool:
    """Return whether a KafkaError says that the principal may not do this: no retry can help."""
    return isinstance(error, KafkaError) and error.code() in _FORBIDDEN


def metadata_of(commit: Any) -> str:
    """Return the metadata of a commit (a TopicPartition), "" for none.

    librdkafka reads past its end if another client wrote it, and the memory behind it may not be text. Then
    the commit is not ours, and the value returned here is not valid metadata.
    """
    try:
        return commit.metadata or ""
    except UnicodeDecodeError:
        return "\ufffd"


def why_unanswered(consumer: Consumer) -> KafkaError | None:
    """Return why a consumer without assignment gets no answer about its group, if it may not see the group.

    librdkafka retries for ever; only an error event has the reason.
    """
    event = consumer.poll(0)
    return event.error() if event is not None and is_forbidden(event.error()) else None


def as_clear_error(error: Any, bootstrap: str, what: str = "") -> AcktreeError:
    """Return the acktree error for a KafkaError; ``what`` names what was requested."""
    if isinstance(error, KafkaError) and error.code() in _AWAY:
        return _unreachable(bootstrap, error, "")
    if is_forbidden(error):
        return _forbidden(error, bootstrap, what)
    if isinstance(error, KafkaError) and error.code() == KafkaError._AUTHENTICATION:
        return NotAuthenticated(f"the broker at {bootstrap} does not let this client in: {error.str()}")
    text = error.str() if error else str(error)
    return BrokerRefused(f"the broker at {bootstrap} refused: {_about(what, text)}")


def _forbidden(error: KafkaError, bootstrap: str, what: str) -> NotAuthorized:
    """Return the error; for a cluster right it omits Kafka's own text, a dump of the request."""
    is_dump = error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    text = KafkaError(error.code()).str() if is_dump else error.str()
    return NotAuthorized(
        f"the broker at {bootstrap} forbids it: {_about(what, text)}; the rights that each role needs are "
        "printed by: acktree acl plan --role ROLE"
    )


def _about(what: str, text: str) -> str:
    return f"{what}: {text}" if what else text


def _unreachable(bootstrap: str, error: KafkaError, hint: str) -> BrokerUnreachable:
    return BrokerUnreachable(
        f"no Kafka broker answers at {bootstrap} ({error.str()}); check the address and that it runs{hint}"
    )
