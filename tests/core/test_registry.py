"""The registry of a broker that comes back: what it refuses while it is not ready is asked again."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from acktree.core import world
from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.kafka.settings import producer_settings
from acktree.core.topology import registry
from acktree.core.topology.file import parse_topology, registry_topic
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import Registry, read_histories
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

TOPOLOGY = """
name = "{name}"
message_timeout_s = {timeout_s}
[spouts.s]
emits = ["{name}.out"]
[bolts.b]
reads = ["{name}.out"]
"""


class Unready:
    """A consumer whose broker is not ready for some calls; each takes one from its ``refusals``."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer, self._topic = consumer, topic
        self.refusals: dict[str, list[int]] = {"list_topics": [], "consume": [], "get_watermark_offsets": []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def list_topics(self, *given: Any, **named: Any) -> Any:
        found = self._consumer.list_topics(*given, **named)
        if codes := self.refusals["list_topics"]:
            found.topics[self._topic].error = KafkaError(codes.pop(0))
        return found

    def consume(self, most: int, timeout_s: float) -> Any:
        if codes := self.refusals["consume"]:
            error, place = KafkaError(codes.pop(0)), (self._topic, 0)
            about = {"topic": lambda: place[0], "partition": lambda: place[1], "offset": lambda: None}
            return [SimpleNamespace(error=lambda: error, **about)]
        return self._consumer.consume(most, timeout_s)

    def get_watermark_offsets(self, *given: Any, **named: Any) -> Any:
        if codes := self.refusals["get_watermark_offsets"]:
            raise KafkaException(KafkaError(codes.pop(0)))
        return self._consumer.get_watermark_offsets(*given, **named)


Open = Callable[..., tuple[Registry, Unready]]


def publish(bootstrap: str, name: str, timeout_s: int) -> None:
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name, timeout_s=timeout_s)), {})


@pytest.fixture
def opened(kafka: str, unique: str, simulation: Simulation | None, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Publish a topology; return a function that opens its registry at a broker with these refusals."""
    run_in(simulation, lambda: publish(kafka, unique, 30))

    def open_at(**refusals: list[int]) -> tuple[Registry, Unready]:
        made: list[Unready] = []

        def make(settings: Any) -> Unready:
            made.append(Unready(make_consumer(settings), registry_topic(unique)))
            made[-1].refusals |= refusals
            return made[-1]

        with monkeypatch.context() as patched:
            patched.setattr(registry, "make_consumer", make)
            return Registry(kafka, unique, {}), made[-1]

    return open_at


def test_a_process_that_starts_while_the_registry_has_no_leader_waits_for_one(opened: Open) -> None:
    found, consumer = opened(list_topics=[KafkaError.LEADER_NOT_AVAILABLE] * 2)
    assert found.history.latest.version == 1
    assert consumer.refusals["list_topics"] == []
    found.close()


@pytest.mark.real
def test_a_topology_that_is_deleted_while_all_are_read_is_left_out(
    opened: Open, kafka: str, unique: str
) -> None:
    found, _ = opened()
    found.close()
    assert [each.name for each in read_histories(kafka, [unique, f"{unique}-gone"], {})] == [unique]


class Repeating(Unready):
    """A consumer that says again and again that a topic does not exist, and nothing of the others."""

    def consume(self, most: int, timeout_s: float) -> Any:
        self.refusals["consume"] = [KafkaError.UNKNOWN_TOPIC_OR_PART]
        world.sleep(1.0)
        return super().consume(most, timeout_s)


def test_a_broker_that_only_repeats_that_a_topic_is_gone_is_not_awaited_for_ever(
    opened: Open, kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened()[0].close()
    gone = f"{unique}-gone"
    monkeypatch.setattr(
        registry, "make_consumer", lambda given: Repeating(make_consumer(given), registry_topic(gone))
    )
    with pytest.raises(BrokerUnreachable, match=registry_topic(unique)):
        read_histories(kafka, [unique, gone], {})


@pytest.mark.real
def test_errors_of_a_restarting_broker_are_retried_while_the_registry_is_read(opened: Open) -> None:
    passing = [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]
    found, consumer = opened(consume=passing)
    assert found.history.latest.version == 1
    assert consumer.refusals["consume"] == []
    found.close()


def test_an_error_that_cannot_be_retried_ends_the_reading_of_the_registry(opened: Open) -> None:
    with pytest.raises(BrokerRefused, match="registry"):
        opened(consume=[KafkaError.TOPIC_EXCEPTION])


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE])
def test_a_version_seen_in_a_header_is_loaded_from_a_broker_that_has_just_restarted(
    opened: Open, kafka: str, unique: str, code: int
) -> None:
    found, consumer = opened()
    publish(kafka, unique, 60)
    consumer.refusals |= {"get_watermark_offsets": [code] * 2, "consume": [KafkaError._TRANSPORT] * 2}
    found.catch_up()
    assert found.history.latest.message_timeout_s == 60
    assert found.refresh()
    assert consumer.refusals["get_watermark_offsets"] == consumer.refusals["consume"] == []
    found.close()


def test_a_publisher_that_hangs_in_its_transaction_hides_no_earlier_version(
    opened: Open, kafka: str, unique: str
) -> None:
    found, _ = opened()
    publish(kafka, unique, 60)
    producer = make_producer(producer_settings(kafka, {}, transactional_id=unique))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(registry_topic(unique), b"not committed", key=b"3")
    producer.flush()
    found.catch_up()
    assert sorted(found.history.versions) == [1, 2]
    found.close()
    producer.abort_transaction(30)


def test_a_poll_of_the_registry_does_not_wait_for_the_broker(opened: Open) -> None:
    found, consumer = opened()
    consumer.refusals["consume"] = [KafkaError._TRANSPORT] * 2
    assert not found.refresh()
    assert consumer.refusals["consume"] == [KafkaError._TRANSPORT]
    found.close()


def test_a_process_that_may_not_read_the_registry_any_more_says_so_once(
    opened: Open, kafka: str, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    found, consumer = opened()
    consumer.refusals["consume"] = [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2
    assert not found.refresh()
    assert not found.refresh()
    assert caplog.messages == [found.refused]
    publish(kafka, unique, 60)
    deadline = world.monotonic_s() + 30
    while not found.refresh():
        assert world.monotonic_s() < deadline
    assert not found.refused
    found.close()
