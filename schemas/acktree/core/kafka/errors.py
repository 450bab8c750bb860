"""Classifies Kafka's errors: the one place that decides which are transient and which no retry can help.

Invariant: an error that no set here names is final. How to handle an error is up to the caller.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from acktree.core.errors import (
    BrokerRefused,
    BrokerUnreachable,
    NotAuthenticated,
    NotAuthorized,
    RefusedSetting,
    TransactionTooSlow,
)
from acktree.wire.errors import AcktreeError

_AWAY = frozenset(
    (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)
)
_NOT_READY = frozenset(
    (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._TIMED_OUT_QUEUE,
    )
)
_MEMBERSHIP_LOST = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._MAX_POLL_EXCEEDED,
    )
)
_PRODUCER_LOST = frozenset(
    (
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError._STATE,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
    )
)
_OUTCOME_UNKNOWN = frozenset((KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT))
_MISSING = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC))
_DAMAGED = frozenset(
    (
        KafkaError.INVALID_MSG,
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,  # a format that librdkafka does not know
    )
)
_TRUNCATION = re.compile(r"log truncation detected .*broker end offset is (\d+)")
_FORBIDDEN = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)


def is_not_ready(error: KafkaError) -> bool:
    """Return whether a broker answered that it is not ready yet: the request may be retried immediately."""
    return error.retriable() or error.code() in _NOT_READY


def is_transient(error: KafkaError) -> bool:
    """Return whether an error means only that the broker is away or not ready yet."""
    return error.code() in _AWAY or is_not_ready(error)


def is_membership_lost(error: KafkaError) -> bool:
    """Return whether the group has rebalanced: another member may make the request now.

    For a client that is not a member: the group has members.
    """
    return error.code() in _MEMBERSHIP_LOST


def is_producer_lost(error: KafkaError) -> bool:
    """Return whether a producer was fenced, or does not know whether its commit succeeded."""
    return error.code() in _PRODUCER_LOST


def may_be_fenced(error: KafkaError) -> bool:
    """Return whether a commit or an abort may have met a fence half way; another abort says whether it did.

    A broker prepares a fence and aborts the transaction in two steps, and answers its producer in between as
    it answers after an unexpected error.
    """
    return error.code() == KafkaError.UNKNOWN


def is_outcome_unknown(error: KafkaError) -> bool:
    """Return whether a record that was not confirmed may be in the log nevertheless."""
    return error.code() in _OUTCOME_UNKNOWN


def is_missing(error: KafkaError) -> bool:
    """Return whether a topic or partition does not exist."""
    return error.code() in _MISSING


def is_damaged(error: KafkaError) -> bool:
    """Return whether records that were fetched, or asked for, cannot be read: their bytes are damaged."""
    return error.code() in _DAMAGED


def is_unreadable(error: KafkaError) -> bool:
    """Return whether a consumer cannot continue in a partition: see ``unreadable.py``."""
    return is_damaged(error) or error.code() == KafkaError._AUTO_OFFSET_RESET


def truncated_end(error: KafkaError) -> int | None:
    """Return where a log ended before it was written again, None if an error does not say that it was.

    A client that has seen a record of a leader epoch notices by it when a later leader lacks that record, as
    KIP-320 describes. With auto.offset.reset=error librdkafka says so in its text only.

    >>> text = "Partition log truncation detected at offset 9 (leader epoch 3): broker end offset is 5 (...)"
    >>> truncated_end(KafkaError(KafkaError._AUTO_OFFSET_RESET, text))
    5
    >>> truncated_end(KafkaError(KafkaError._AUTO_OFFSET_RESET, "fetch failed: Broker: Offset out of range"))
    """
    found = _TRUNCATION.search(error.str()) if error.code() == KafkaError._AUTO_OFFSET_RESET else None
    return int(found[1]) if found else None


def is_unknown_epoch(error: KafkaError) -> bool:
    """Return whether a log has none of the leader epochs up to that of a position: it is another log."""
    return error.code() == KafkaError._AUTO_OFFSET_RESET and "No epoch found" in error.str()


def is_forbidden(error: Any) -> bool:
    """Return whether a KafkaError says that the principal may not do this: no retry can help."""
    return isinstance(error, KafkaError) and error.code() in _FORBIDDEN


def was_transient(error: BaseException) -> bool:
    """Return whether an acktree error means only that the broker is away, not ready yet or slow."""
    if isinstance(error, BrokerUnreachable | TransactionTooSlow):
        return True
    reason = reason_of(error)
    return reason is not None and is_transient(reason)


def was_fenced(error: BaseException) -> bool:
    """Return whether an acktree error means that another producer has fenced this one, or may have."""
    reason = reason_of(error)
    return reason is not None and (is_producer_lost(reason) or may_be_fenced(reason))


def reason_of(error: BaseException) -> KafkaError | None:
    """Return the KafkaError that an acktree error was made of, None if it was made of none."""
    cause = error.__cause__
    found = cause.args[0] if isinstance(cause, KafkaException) else None
    return found if isinstance(found, KafkaError) else None


@contextmanager
def clear_settings() -> Iterator[None]:
    """Turn librdkafka's rejection of a property into RefusedSetting."""
    try:
        yield
    except KafkaException as error:
        detail = error.args[0]
        raise RefusedSetting(detail.str() if isinstance(detail, KafkaError) else str(detail)) from error


@contextmanager
def clear_errors(bootstrap: str, what: str = "") -> Iterator[None]:
    """Turn a KafkaException into BrokerUnreachable or BrokerRefused; ``what`` names what was requested.

    A future without an answer in time raises TimeoutError instead; that also becomes BrokerUnreachable.
    """
    try:
        yield
    except KafkaException as error:
        raise as_clear_error(error.args[0], bootstrap, what) from error
    except TimeoutError as error:
        raise unreachable(bootstrap, KafkaError(KafkaError._TIMED_OUT)) from error


def as_clear_error(error: Any, bootstrap: str, what: str = "") -> AcktreeError:
    """Return the acktree error for a KafkaError; ``what`` names what was requested."""
    if isinstance(error, KafkaError) and error.code() in _AWAY:
        return unreachable(bootstrap, error)
    if is_forbidden(error):
        return _forbidden(error, bootstrap, what)
    if isinstance(error, KafkaError) and error.code() == KafkaError._AUTHENTICATION:
        return NotAuthenticated(
            f"the broker at {bootstrap} rejected this client's credentials: {error.str()}"
        )
    text = error.str() if error else str(error)
    return BrokerRefused(f"the broker at {bootstrap} refused: {_about(what, text)}")


def _forbidden(error: KafkaError, bootstrap: str, what: str) -> NotAuthorized:
    """Return the error; for a cluster right it omits Kafka's own text, a dump of the request."""
    is_dump = error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    text = KafkaError(error.code()).str() if is_dump else error.str()
    return NotAuthorized(
        f"the broker at {bootstrap} denied access: {_about(what, text)}; the rights that each role needs are "
        "printed by: acktree acl plan --role ROLE"
    )


def _about(what: str, text: str) -> str:
    return f"{what}: {text}" if what else text


def unreachable(bootstrap: str, error: KafkaError, hint: str = "") -> BrokerUnreachable:
    """Return the error that no broker answers; ``hint`` is appended to it."""
    return BrokerUnreachable(
        f"no Kafka broker answers at {bootstrap} ({error.str()}); check the address and the broker{hint}"
    )
