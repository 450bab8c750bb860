"""An acker that starts while its broker comes back: what the broker is not ready for is asked again."""

from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer

import pytest
from confluent_kafka import KafkaError, KafkaException

from acker.cluster import wait_for
from acktree.acker.kafka.membership import shorten_session
from acktree.core.kafka import group_offsets
from acktree.core.kafka.clients import make_consumer

pytestmark = pytest.mark.simulated


class LoadingConsumer:
    """A consumer whose broker loads its groups when it is asked for committed offsets."""

    def __init__(self, consumer, codes):
        self._consumer, self._codes = consumer, codes

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def committed(self, places, **named):
        if self._codes:
            raise KafkaException(KafkaError(self._codes.pop(0)))
        return self._consumer.committed(places, **named)


@pytest.mark.parametrize("protocol", [{}, {"group.protocol": "consumer"}], ids=["classic", "kip-848"])
def test_an_acker_that_starts_while_groups_are_loaded_folds_from_the_committed_cut(
    make, monkeypatch, protocol
):
    cluster = make(ackers=1)
    first = cluster.start(**protocol)
    cluster.init(1, 1).ack(1, 1).await_acked([1])
    wait_for(lambda: cluster.committed() == cluster.ends(), "the cut at the end of the log")
    first.stop()
    codes = [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR, KafkaError._TIMED_OUT]
    monkeypatch.setattr(
        group_offsets, "make_consumer", lambda given: LoadingConsumer(make_consumer(given), codes)
    )
    second = cluster.start(**protocol)
    assert codes == []
    assert second.acker.ownership.refolds == 1
    cluster.init(2, 2).ack(2, 2).await_acked([1, 2])


class Silent:
    """An admin client whose broker does not answer in time."""

    def describe_configs(self, resources):
        silence = Future()
        silence.set_exception(NoAnswer())
        return dict.fromkeys(resources, silence)


def test_an_acker_survives_a_broker_that_is_slow_to_report_the_session_timeout(caplog):
    shorten_session(Silent(), "group")
    assert "action=session_not_shortened group=group" in caplog.text
