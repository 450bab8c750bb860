"""Writes and reads the doctor's own topics, and removes them at the end.

Invariant: nothing but topics and groups whose names begin with PREFIX is written to, joined or removed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from acktree.console.doctor.answers import Answer
from acktree.console.doctor.checks import Unknown
from acktree.core import world
from acktree.core.kafka.clients import NEW_TOPIC_S, make_consumer, make_producer, wait_until_delivered
from acktree.core.kafka.errors import is_missing, is_transient
from acktree.core.kafka.log_reader import LogReader
from acktree.core.kafka.settings import Settings, consumer_settings, producer_settings
from acktree.core.topology.publish import BROKER_DEFAULT
from acktree.producers.kafka.deadline_call import close_consumer

PREFIX = "acktree-doctor-"
REQUEST_S = 10.0
_POLL_S, _BATCH = 0.2, 100


class Scratch:
    """Topics, a group and a transactional id that no other run of the doctor has."""

    def __init__(self, bootstrap: str, user: Settings, admin: AdminClient, factor: int | None) -> None:
        """``factor`` is the replication factor of its topics, None for the broker's default."""
        self.bootstrap, self.user, self.admin = bootstrap, user, admin
        self.name = f"{PREFIX}{world.random_bits(48):012x}"
        self._factor = factor or BROKER_DEFAULT
        self._asked_for: list[str] = []
        self._topic: str | None = None
        self._why_none = (Answer.NO_ANSWER, "there is no test topic")

    @property
    def topic(self) -> str:
        """A topic with the broker's default settings. Raises Unknown if it could not be made."""
        if self._topic is None:
            raise Unknown(*self._why_none)
        return self._topic

    def create_topic(self) -> str:
        """Make the topic that most checks are made with, and return its name. Raises KafkaException."""
        try:
            self._topic = self.create("", {})
        except KafkaException as error:
            self._why_none = (Answer.NO_ANSWER, f"no test topic could be created: {error.args[0].str()}")
            raise
        return self._topic

    def create(self, suffix: str, config: Mapping[str, str]) -> str:
        """Make another topic, wait until the broker knows it, and return its name. Raises KafkaException."""
        name = self.name + suffix
        self._asked_for.append(name)  # before the request: an answer may be lost
        (future,) = self.admin.create_topics([NewTopic(name, 1, self._factor, config=dict(config))]).values()
        world.wait_for(future, REQUEST_S)
        until_s = world.monotonic_s() + NEW_TOPIC_S
        while True:
            try:
                self.describe(name)
                return name
            except KafkaException as error:
                if not is_missing(error.args[0]) or world.monotonic_s() > until_s:
                    raise
                self.admin.poll(0.1)

    def describe(self, topic: str) -> Any:
        """Return the broker's description of a topic. Raises KafkaException, TimeoutError."""
        (future,) = self.admin.describe_topics(TopicCollection([topic])).values()
        return world.wait_for(future, REQUEST_S)

    def settings(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic. Raises KafkaException, TimeoutError."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (future,) = self.admin.describe_configs([resource], request_timeout=REQUEST_S).values()
        return {name: entry.value or "" for name, entry in world.wait_for(future, REQUEST_S).items()}

    def producer(self, **ours: Any) -> Producer:
        """Return a producer, as the topology's processes make theirs."""
        return make_producer(producer_settings(self.bootstrap, self.user, **ours))

    @contextmanager
    def consumer(self, group: str = "", user: Settings | None = None, **ours: Any) -> Iterator[Consumer]:
        """Yield a consumer of the scratch group, with ``group`` at its end, and close it."""
        settings = consumer_settings(
            self.bootstrap, self.name + group, self.user if user is None else user, **ours
        )
        consumer = make_consumer(settings)
        try:
            yield consumer
        finally:
            close_consumer(consumer)

    def write(self, topic: str, value: bytes, producer: Producer | None = None) -> None:
        """Write a record and wait until it is acknowledged. Raises KafkaException."""
        errors: list[Any] = []
        used = producer or self.producer(delivery_report_only_error=False)
        used.produce(
            topic, value=value, key=b"k", on_delivery=lambda error, _record: errors.append(error), partition=0
        )
        if wait_until_delivered(used, REQUEST_S):
            raise TimeoutError(f"a record was not acknowledged within {REQUEST_S:g} s")
        if refused := [error for error in errors if error is not None]:
            raise KafkaException(refused[0])

    def read_to(self, topic: str, last: bytes) -> list[Message]:
        """Return the committed records of a topic up to the value ``last``, or what came in time.

        Raises AcktreeError, as ``LogReader.read``.
        """
        found: list[Message] = []
        place, until_s = (topic, 0), world.monotonic_s() + REQUEST_S
        with self.consumer(auto_offset_reset="error", enable_partition_eof=True) as consumer:
            reader = LogReader(consumer, self.bootstrap, self.name, self.user)
            while world.monotonic_s() < until_s:
                if place not in reader.places:  # a topic that was just made may be missing at first
                    reader.begin({place: 0})
                for log_range in reader.read(_BATCH, _POLL_S):
                    found += log_range.records
                if any(message.value() == last for message in found):
                    break
        return found

    def wait_for_assignment(self, consumer: Consumer, topic: str) -> bool:
        """Join the consumer's group, and return whether it was given the topic. Raises KafkaException."""
        consumer.subscribe([topic])
        until_s = world.monotonic_s() + 2 * REQUEST_S
        while world.monotonic_s() < until_s:
            message = consumer.poll(_POLL_S)
            error = None if message is None else message.error()
            if error is not None and (error.fatal() or not (is_transient(error) or is_missing(error))):
                raise KafkaException(error)
            if consumer.assignment():
                return True
        return False

    def remove(self) -> dict[str, str]:
        """Remove every topic that may have been made; return those that are left, with the reason."""
        left = {}
        for name in self._asked_for:
            (future,) = self.admin.delete_topics([name]).values()
            try:
                world.wait_for(future, REQUEST_S)
            except KafkaException as error:
                if not is_missing(error.args[0]):
                    left[name] = error.args[0].str()
            except TimeoutError:
                left[name] = f"no answer within {REQUEST_S:g} s"
        return left
