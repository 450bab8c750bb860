"""Creates librdkafka's clients, and asks a broker whether it can be relied on."""

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

from acktree.core import world
from acktree.core.errors import MissingTopic
from acktree.core.kafka.client_errors import ClientErrors
from acktree.core.kafka.errors import (
    as_clear_error,
    clear_errors,
    clear_settings,
    is_forbidden,
    is_missing,
    is_not_ready,
    is_transient,
    unreachable,
)
from acktree.core.kafka.oauth import with_tokens
from acktree.core.kafka.outages import ClientLog, last_fatal_error, log_retry
from acktree.core.kafka.settings import Settings, admin_settings
from acktree.wire.errors import AcktreeError

Answer = TypeVar("Answer")

BROKER_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 60.0
"""How long a starting process waits for a broker that answers but is not ready yet."""
FULL_QUEUE_WAIT_S = 0.1
READY_PAUSE_S = 0.2
FIRST_CHECK_S = 1.0
"""How long a new client waits before it first checks whether the broker has refused it."""
NEW_TOPIC_S = 3.0
"""How long a topic that was just created may be missing from the answers of a busy broker."""

_log = logging.getLogger("acktree.kafka")


def make_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Return a Consumer that logs to ``acktree.kafka``; a property that does not exist is refused.

    Raises:
        RefusedSetting: librdkafka, or ``oauth_cb``, refuses a property.
        NotAuthenticated: ``oauth_cb`` has no token.
    """
    with clear_settings(), with_tokens(settings) as whole:
        return world.consumer(whole, ClientLog(whole))


def make_producer(settings: Mapping[str, Any]) -> Producer:
    """Return a Producer that logs to ``acktree.kafka``; a property that does not exist is refused.

    Raises:
        RefusedSetting, NotAuthenticated: as ``make_consumer``.
    """
    with clear_settings(), with_tokens(settings) as whole:
        return world.producer(whole, ClientLog(whole))


def produce_when_room(producer: Producer, topic: str, value: bytes, **more: Any) -> None:
    """Queue a record; while the client's queue is full, wait for room."""
    while True:
        try:
            producer.produce(topic, value, **more)
            return
        except BufferError:
            producer.poll(FULL_QUEUE_WAIT_S)


def wait_until_delivered(producer: Producer, timeout_s: float) -> int:
    """Send what waits, and wait for at most ``timeout_s``; return how many records have had no report.

    ``Producer.flush`` continues to call delivery callbacks once the client has a fatal error, and then ends
    with the SystemError of the first of them that meets it. Polling would stop at the fatal error, but send
    nothing before ``linger.ms`` is over.

    Raises:
        KafkaException: the fatal error, as where the broker takes the right to write, or fences the producer.
    """
    try:
        return producer.flush(timeout_s)
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):  # one for each callback, the log's too, that met the one before
            cause = cause.__cause__
        if isinstance(cause, KafkaException):
            raise cause from None
        # a callback that handles other errors itself may have cleared it
        raise KafkaException(last_fatal_error()) from error


def make_admin(bootstrap: str, user: Settings) -> AdminClient:
    """Return an AdminClient that has had an answer from the broker.

    Raises:
        BrokerUnreachable: no broker answers within BROKER_TIMEOUT_S.
        NotAuthenticated: credentials or a certificate are refused, raised immediately, not after the
            time-out; or ``oauth_cb`` has no token.
        RefusedSetting: as ``make_consumer``.
    """
    errors = ClientErrors()
    with clear_settings(), with_tokens(admin_settings(bootstrap, user)) as settings:
        log = ClientLog(settings, is_quiet=True)
        admin = world.admin({**settings, "error_cb": errors}, log)
    deadline_s, wait_s = world.monotonic_s() + BROKER_TIMEOUT_S, FIRST_CHECK_S
    while True:
        try:
            admin.list_topics(timeout=wait_s)
            log.is_quiet = False
            return admin
        except KafkaException as error:
            admin.poll(0)
            if (refusal := errors.refusal(bootstrap)) is not None:
                raise refusal from error
            left_s = deadline_s - world.monotonic_s()
            if left_s <= 0:
                raise unreachable(bootstrap, error.args[0], errors.hint()) from error
            wait_s = min(2 * wait_s, left_s)


def existing_topics(admin: AdminClient, bootstrap: str, topics: Collection[str]) -> set[str]:
    """Return which topics exist, whether or not the broker lists them.

    Raises:
        NotAuthorized: a topic may exist, and this principal may not see it.
        BrokerUnreachable, BrokerRefused: see their docstrings.
    """
    existing = set()
    with clear_errors(bootstrap):
        for topic, future in admin.describe_topics(TopicCollection(list(topics))).items() if topics else ():
            try:
                world.wait_for(future, BROKER_TIMEOUT_S)
                existing.add(topic)
            except KafkaException as error:
                if is_forbidden(error.args[0]):
                    raise as_clear_error(error.args[0], bootstrap, f"topic {topic}") from error
                if not is_missing(error.args[0]):
                    raise
    return existing


def refuse_missing(admin: AdminClient, bootstrap: str, topic: str, text: str) -> None:
    """Raise the reason why a topic is not in the broker's list, which omits topics that may not be seen.

    Returns if it exists after all: a broker may list a new topic only a moment after it was created.

    Raises:
        NotAuthorized: the topic may exist, and this principal may not see it.
        MissingTopic: it does not exist; ``text`` is the error text.
    """
    deadline_s = world.monotonic_s() + NEW_TOPIC_S
    while not existing_topics(admin, bootstrap, [topic]):
        if world.monotonic_s() > deadline_s:
            raise MissingTopic(text)
        admin.poll(0.1)


def retry_until_ready(
    ask: Callable[[], Answer], *, wait_if_away: bool = False, are_listed: bool = False
) -> Answer:
    """Call ``ask``, and retry it while the broker says that it is not ready yet, for at most READY_TIMEOUT_S.

    After a start a broker answers while it still loads its groups and transactions. ``wait_if_away``: retry
    also while it does not answer, for callers that had an answer a moment ago. ``are_listed``: retry also
    while it does not know a topic, for callers to whom a broker has just listed all that they ask for.

    Raises:
        The last error of ``ask``; an error that waiting cannot fix is raised immediately.
    """
    deadline_s = world.monotonic_s() + READY_TIMEOUT_S
    while True:
        try:
            return ask()
        except (KafkaException, AcktreeError) as error:
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException) or not isinstance(cause.args[0], KafkaError):
                raise
            passes = is_transient if wait_if_away else is_not_ready
            is_new = are_listed and is_missing(cause.args[0])
            if not (is_new or passes(cause.args[0])) or world.monotonic_s() > deadline_s:
                raise
            log_retry(_log, "the broker is not ready yet: %s", error, action="not_ready")
            world.sleep(READY_PAUSE_S)


def ask_bounds(consumer: Consumer, place: TopicPartition, *, wait_if_away: bool = False) -> tuple[int, int]:
    """Return where a log begins and ends, as its broker says.

    A client forgets partitions for a moment while their broker is away, so it waits for one that is unknown.
    Raises as ``retry_until_ready``.
    """

    def ask() -> tuple[int, int]:
        try:
            begin, end = consumer.get_watermark_offsets(place, BROKER_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, error.args[0].str())) from error
        return begin, end

    return retry_until_ready(ask, wait_if_away=wait_if_away)


def consume_ready(consumer: Consumer, most: int, wait_s: float) -> list[Message]:
    """Return what has come, or else the first that comes: a call for more would wait for all of them."""
    return consumer.consume(most, 0.0) or (consumer.consume(1, wait_s) if wait_s else [])


def metadata_of(commit: Any) -> str:
    """Return the metadata of a commit (a TopicPartition), "" for none.

    librdkafka reads past its end if another client wrote it, and the memory behind it may not be text. Then
    the commit is not ours, and the value returned here is not valid metadata.
    """
    try:
        return commit.metadata or ""
    except UnicodeDecodeError:
        return "\ufffd"


def listed_offset(answer: Future[ListOffsetsResultInfo], timeout_s: float = BROKER_TIMEOUT_S) -> int:
    """Return an offset that ``AdminClient.list_offsets`` was asked for; -1 where no record is that new.

    Raises as ``listed``.
    """
    return int(listed(answer, timeout_s).offset)


def listed(
    answer: Future[ListOffsetsResultInfo], timeout_s: float = BROKER_TIMEOUT_S
) -> ListOffsetsResultInfo:
    """Return what ``AdminClient.list_offsets`` was asked for: an offset, and the epoch of its leader.

    For a partition without a leader confluent-kafka answers OFFSET_INVALID once the request has timed out,
    and a client that has not seen the topic yet the error _NOENT: neither says where a log ends, or that
    there is none.

    Raises:
        KafkaException: LEADER_NOT_AVAILABLE in both cases; otherwise what the broker answers, or _TIMED_OUT.
    """
    no_leader = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "a partition has no leader"))
    try:
        found = world.wait_for(answer, timeout_s)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._NOENT:
            raise no_leader from error
        raise
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
    if found.offset == OFFSET_INVALID:
        raise no_leader
    return found


def why_unanswered(consumer: Consumer) -> KafkaError | None:
    """Return why a consumer without assignment gets no answer about its group, if it may not see the group.

    librdkafka retries forever; only an error event has the reason.
    """
    event = consumer.poll(0)
    return event.error() if event is not None and is_forbidden(event.error()) else None
