"""What each error of Kafka means is decided once, and each means one thing."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from acktree.core.errors import BrokerRefused, BrokerUnreachable, NotAuthenticated, NotAuthorized
from acktree.core.kafka.errors import (
    as_clear_error,
    clear_errors,
    is_forbidden,
    is_membership_lost,
    is_missing,
    is_producer_lost,
    is_transient,
    was_transient,
)

MEANINGS = (is_transient, is_membership_lost, is_producer_lost, is_missing, is_forbidden)
CODES = [value for name, value in vars(KafkaError).items() if name.upper() == name and isinstance(value, int)]


@pytest.mark.parametrize("code", CODES)
def test_an_error_belongs_to_one_class_at_most(code: int):
    meanings = [meaning.__name__ for meaning in MEANINGS if meaning(KafkaError(code))]
    assert len(meanings) <= 1, KafkaError(code).name()


def test_the_codes_of_the_client_are_known():
    assert len(CODES) > 100


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_requests_are_retried_while_a_leader_is_elected_or_a_group_is_loaded(code: int):
    error = BrokerRefused("no")
    error.__cause__ = KafkaException(KafkaError(code))
    assert is_transient(KafkaError(code))
    assert was_transient(error)


def test_a_broker_that_did_not_answer_is_away_whatever_has_shown_that():
    assert was_transient(BrokerUnreachable("no answer"))
    assert not was_transient(BrokerRefused("no"))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._TRANSPORT, BrokerUnreachable),
        (KafkaError._AUTHENTICATION, NotAuthenticated),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, NotAuthorized),
        (KafkaError.MSG_SIZE_TOO_LARGE, BrokerRefused),
    ],
)
def test_an_error_becomes_a_sentence_of_its_class(code: int, error: type[Exception]):
    assert type(as_clear_error(KafkaError(code), "broker:9092", "topic t")) is error


def test_a_future_without_an_answer_means_that_no_broker_answers():
    """The admin client's futures raise TimeoutError, which no KafkaError stands for."""
    with pytest.raises(BrokerUnreachable, match="no Kafka broker answers at b:9092"), clear_errors("b:9092"):
        raise TimeoutError
