"""librdkafka clients with the settings our promises rest on, and its errors as clear sentences.

Invariant: a user's property passes through untouched unless it would break a promise; then it is refused
with the reason, never overridden in silence.
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
from acktree.schemas.refusals import Complaints

Settings = Mapping[str, str]
Answer = TypeVar("Answer")

BROKER_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 60.0
"""How long a process that starts waits for a broker that answers and is not ready."""
READY_PAUSE_S = 0.2
FIRST_LOOK_S = 1.0
"""How long a new client first waits before it looks whether the broker has refused it."""
NEW_TOPIC_S = 3.0
"""How long a topic that was just made may be missing in the answers of a busy broker."""

LEADER_MAX_AGE_MS = 5_000
"""How long an admin client trusts what it knows of leaders.

It does not ask again when a leader's epoch was refused. With librdkafka's own 15 minutes questions for log
ends would fail that long after a broker's restart, and an acker's clock stand still at the log end.
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
    """Return ``base``, which may do without a promise, with the user's settings, which may not."""
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
        RefusedSetting: a user setting would break a promise.
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
    """Return an AdminClient that has spoken to the broker.

    Raises:
        BrokerUnreachable: no broker answers within BROKER_TIMEOUT_S.
        NotAuthenticated: credentials or a certificate are refused; said at once, not after the time-out.
    """
    complaints = Complaints()
    with clear_settings():
        settings: dict[str, Any] = {**admin_settings(bootstrap, user), "error_cb": complaints}
        admin = AdminClient(settings, logger=_log)
    deadline_s, wait_s = time.monotonic() + BROKER_TIMEOUT_S, FIRST_LOOK_S
    while True:
        try:
            admin.list_topics(timeout=wait_s)
            return admin
        except KafkaException as error:
            admin.poll(0)
            if (refusal := complaints.refusal(bootstrap)) is not None:
                raise refusal from error
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise _unreachable(bootstrap, error.args[0], complaints.hint()) from error
            wait_s = min(2 * wait_s, left_s)


def topics_there(admin: AdminClient, bootstrap: str, topics: Collection[str]) -> set[str]:
    """Return which topics exist, whether or not the broker lists them.

    Raises:
        NotAuthorized: one may be there, and is none of this principal's business.
        BrokerUnreachable, BrokerRefused: see there.
    """
    there = set()
    with clear_errors(bootstrap):
        for topic, future in admin.describe_topics(TopicCollection(list(topics))).items() if topics else ():
            try:
                future.result(BROKER_TIMEOUT_S)
                there.add(topic)
            except KafkaException as error:
                if is_forbidden(error.args[0]):
                    raise as_clear_error(error.args[0], bootstrap, f"topic {topic}") from error
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
    return there


def refuse_missing(admin: AdminClient, bootstrap: str, topic: str, text: str) -> None:
    """Say why a topic is not in the broker's list, which leaves out what the principal may not see.

    Returns if it is there after all: the broker may show a topic a moment after it was made.

    Raises:
        NotAuthorized: the topic may be there, and is none of this principal's business.
        MissingTopic: it is not there, in the words of ``text``.
    """
    deadline_s = time.monotonic() + NEW_TOPIC_S
    while not topics_there(admin, bootstrap, [topic]):
        if time.monotonic() > deadline_s:
            raise MissingTopic(text)
        admin.poll(0.1)


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


def will_pass(error: BaseException) -> bool:
    """Tell whether an error of ours was made from a broker's that is away, or is not ready yet."""
    cause = error.__cause__
    if not isinstance(cause, KafkaException) or not isinstance(cause.args[0], KafkaError):
        return False
    return is_passing(cause.args[0])


def is_unsettled(error: KafkaError) -> bool:
    """Tell whether a broker that answers is only not ready yet: it may be asked again at once."""
    return error.retriable() or error.code() in _UNSETTLED


def is_passing(error: KafkaError) -> bool:
    """Tell whether an error says only that the broker is away, or not ready yet."""
    return error.code() in _AWAY or is_unsettled(error)


def when_ready(ask: Callable[[], Answer], *, wait_if_away: bool = False) -> Answer:
    """Ask a broker, again as long as it says that it is not ready yet, for READY_TIMEOUT_S at most.

    After a start a broker loads its groups and transactions, and answers meanwhile. ``wait_if_away``: also
    where it does not answer, for those who know that it was there a moment ago.

    Raises:
        What ``ask`` raised last; at once what waiting cannot mend.
    """
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return ask()
        except (KafkaException, AcktreeError) as error:
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException) or not isinstance(cause.args[0], KafkaError):
                raise
            passes = is_passing if wait_if_away else is_unsettled
            if not passes(cause.args[0]) or time.monotonic() > deadline_s:
                raise
            _log.warning("the broker is not ready yet: %s", error, extra={"action": "not_ready"})
            time.sleep(READY_PAUSE_S)


@contextmanager
def clear_errors(bootstrap: str, what: str = "") -> Iterator[None]:
    """Turn a KafkaException into BrokerUnreachable or BrokerRefused; ``what`` names what was asked for."""
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
    """Tell whether a KafkaError says that the principal may not do this: no further try can help."""
    return isinstance(error, KafkaError) and error.code() in _FORBIDDEN


def metadata_of(commit: Any) -> str:
    """Return the metadata of a commit (a TopicPartition), "" for none.

    librdkafka does not know its end where another client wrote it, and what lies behind in memory may be no
    text: then the commit is none of ours, and what is returned no metadata of ours.
    """
    try:
        return commit.metadata or ""
    except UnicodeDecodeError:
        return "\ufffd"


def why_unanswered(consumer: Consumer) -> KafkaError | None:
    """Return why a consumer without assignment gets no answer of its group, if it may not see the group.

    librdkafka asks such a group's broker for ever; only an error event says why.
    """
    event = consumer.poll(0)
    return event.error() if event is not None and is_forbidden(event.error()) else None


def as_clear_error(error: Any, bootstrap: str, what: str = "") -> AcktreeError:
    """Return the acktree error that says what a KafkaError means; ``what`` names what was asked for."""
    if isinstance(error, KafkaError) and error.code() in _AWAY:
        return _unreachable(bootstrap, error, "")
    if is_forbidden(error):
        return _forbidden(error, bootstrap, what)
    if isinstance(error, KafkaError) and error.code() == KafkaError._AUTHENTICATION:
        return NotAuthenticated(f"the broker at {bootstrap} does not let this client in: {error.str()}")
    text = error.str() if error else str(error)
    return BrokerRefused(f"the broker at {bootstrap} refused: {_about(what, text)}")


def _forbidden(error: KafkaError, bootstrap: str, what: str) -> NotAuthorized:
    """Return the sentence; for a right on the cluster Kafka's own text would be a dump of the request."""
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
