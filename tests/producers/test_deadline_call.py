"""A call is waited for as long as it may take, and no longer."""

import os
import signal
import threading
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.devbroker.broker import LocalBroker
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.settings import consumer_settings
from acktree.producers.kafka import deadline_call
from acktree.producers.kafka.deadline_call import CallTimedOut, call_with_deadline, close_consumer
from acktree.producers.kafka.member_commit import commit_offsets
from producers.cluster import until


def test_the_result_of_the_call_is_returned():
    assert call_with_deadline(lambda: 1, lambda: False) == 1


def test_an_error_of_the_call_is_raised_in_the_waiting_thread():
    with pytest.raises(ZeroDivisionError):
        call_with_deadline(lambda: 1 / 0, lambda: True)


def test_a_call_that_never_returns_is_abandoned_at_the_deadline():
    left, end = iter([True, True, False]), threading.Event()
    with pytest.raises(CallTimedOut):
        call_with_deadline(end.wait, lambda: next(left))
    assert list(left) == []
    end.set()


def test_the_waiting_thread_may_end_the_wait_with_its_own_error():
    def refuse() -> bool:
        raise TimeoutError("stop")

    end = threading.Event()
    with pytest.raises(TimeoutError, match="stop"):
        call_with_deadline(end.wait, refuse)
    end.set()


@pytest.mark.slow
def test_a_commit_and_the_close_are_abandoned_when_the_broker_does_not_answer(
    own_broker: Callable[..., LocalBroker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Neither call has a timeout of its own."""
    broker = own_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("a", 1, 1)])["a"].result()
    consumer = make_consumer(consumer_settings(broker.bootstrap, "g", {}))
    consumer.subscribe(["a"])
    until(lambda: consumer.poll(0.1) is not None or consumer.assignment(), "the assignment")
    assert commit_offsets(consumer, [TopicPartition("a", 0, 0)], lambda: True)

    os.kill(broker.pid, signal.SIGSTOP)
    may_wait = iter([True] * 20 + [False])
    with pytest.raises(CallTimedOut):
        commit_offsets(consumer, [TopicPartition("a", 0, 1)], lambda: next(may_wait))
    monkeypatch.setattr(deadline_call, "CLOSE_S", 0.5)
    close_consumer(consumer)
    assert "has not left its group" in caplog.text
    broker.kill()
