"""The state topic of a spout: written in transactions by one driver, and read whole by the next one.

Invariant: only the driver that started last can commit. A start has read everything when it reads its own
record, never because nothing more comes; what it cannot read stops it, with coordinates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    make_consumer,
    make_producer,
    refuse_missing,
    retry_until_ready,
)
from acktree.core.kafka.errors import as_clear_error, clear_errors, is_producer_lost
from acktree.core.kafka.settings import ANY_SIZE, Settings, consumer_settings, producer_settings
from acktree.producers.ledger.slot_states import offsets_of
from acktree.producers.spouts.driver.dead_letters import DeadLetter
from acktree.wire.errors import AcktreeError, MalformedRecord
from acktree.wire.state_records import (
    SPOUT_KEY,
    START_KEY,
    SlotKey,
    SlotState,
    SpoutState,
    StateStart,
    decode_slot_key,
    decode_slot_state,
    decode_spout_state,
    decode_state_start,
    encode_state_start,
)

FULL_QUEUE_WAIT_S = 0.1
COMMIT_TIMEOUT_S = 60.0
"""How long a transaction is repeated whose answer is lost: as long as librdkafka repeats a commit."""


class ZombieDriver(AcktreeError):
    """A newer driver has taken over this spout; this one must stop."""


class UnreadableState(AcktreeError):
    """A record of a state topic is damaged, not ours, or of a newer version; nothing is skipped."""


@dataclass(slots=True)
class SpoutStates:
    """All that a state topic holds; ``spout`` is None before the first commit of a driver."""

    spout: SpoutState | None = None
    slots: dict[SlotKey, SlotState] = field(default_factory=dict)
    token: int | None = None
    """That of the start that was read last."""
    now_ms: int = 0
    """When that was appended."""
    times_ms: dict[SlotKey, int] = field(default_factory=dict)
    """When each of the slots was appended."""

    def add(self, message: Message) -> None:
        """Add a record in the order of the topic. Raises UnreadableState."""
        key, value = message.key() or b"", message.value()
        try:
            if key == START_KEY:
                self.token, self.now_ms = decode_state_start(value or b"").token, message.timestamp()[1]
            elif key == SPOUT_KEY:
                self.spout = decode_spout_state(value or b"")
            else:
                self._add(decode_slot_key(key), value, message.timestamp()[1])
        except MalformedRecord as error:
            raise UnreadableState(
                f"{message.topic()}/{message.partition()}/{message.offset()} cannot be read as the state of "
                f"a spout, and none of it may be skipped: {error}"
            ) from error

    def _add(self, slot: SlotKey, value: bytes | None, time_ms: int) -> None:
        if value is None:
            self.slots.pop(slot, None)
            return
        self.slots[slot], self.times_ms[slot] = decode_slot_state(value), time_ms
        for offsets in self.slots[slot].sets:
            offsets_of(offsets)

    def at_start(self) -> "SpoutStates":
        """Return the states as they are at the time of the start that was read last."""
        slots = {
            key: state.aged(max(0, self.now_ms - self.times_ms[key])) for key, state in self.slots.items()
        }
        return replace(self, slots=slots)


class StateTopic:
    """Reads the topic once, at the start, and writes it from there on."""

    def __init__(self, admin: AdminClient, bootstrap: str, user: Settings, group: str, topic: str) -> None:
        """Connect to nothing yet; ``group`` is the spout's, and the transactional id of its driver."""
        self._admin, self._bootstrap, self._user = admin, bootstrap, user
        self._group, self.topic = group, topic
        settings = {**user, **ANY_SIZE}
        self._settings = producer_settings(bootstrap, settings, transactional_id=group, linger_ms=0)

    def take_over(self) -> SpoutStates:
        """Fence the driver before, and return all that it, or any other one, has committed.

        Raises:
            MissingTopic: the topic does not exist. UnreadableState: see there.
            ZombieDriver: a newer driver has started meanwhile.
            BrokerUnreachable, BrokerRefused, NotAuthorized: see there.
        """
        if self.topic not in self._names():
            text = (
                f"topic {self.topic!r}, which holds the state of the spout, does not exist; make it with: "
                "acktree topology apply FILE. If it was deleted, what was in flight is emitted again then"
            )
            refuse_missing(self._admin, self._bootstrap, self.topic, text)
        self._producer = make_producer(self._settings)
        with clear_errors(self._bootstrap, f"transactional id {self._group}"):
            retry_until_ready(lambda: self._producer.init_transactions(BROKER_TIMEOUT_S), wait_if_away=True)
        token = world.random_bits(63)
        self.commit({START_KEY: encode_state_start(StateStart(token))})
        settings = consumer_settings(self._bootstrap, self._group, self._user, enable_partition_eof=True)
        consumer = make_consumer({**settings, "auto.offset.reset": "earliest"})
        try:
            return self._read(consumer, token).at_start()
        finally:
            consumer.close()

    def _names(self) -> Mapping[str, object]:
        with clear_errors(self._bootstrap):
            names: Mapping[str, object] = self._admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
            return names

    def _read(self, consumer: Consumer, token: int) -> SpoutStates:
        states = SpoutStates()
        consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
        until_s = world.monotonic_s() + COMMIT_TIMEOUT_S
        while states.token != token:
            if world.monotonic_s() > until_s:
                raise BrokerUnreachable(f"{self.topic} was not read to the record of this start in time")
            message = consumer.poll(1.0)
            if message is None:
                continue
            if (error := message.error()) is None:
                states.add(message)
                until_s = world.monotonic_s() + COMMIT_TIMEOUT_S
            elif error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise as_clear_error(error, self._bootstrap, f"topic {self.topic}")
        return states

    def commit(self, records: Mapping[bytes, bytes | None], letters: Sequence[DeadLetter] = ()) -> None:
        """Write records and dead letters in one transaction; what is not confirmed is repeated.

        None is a tombstone. A letter that is too large for its topic is shortened.

        Raises:
            ZombieDriver: a newer driver has started, or the broker has ended the transaction of this one.
            BrokerUnreachable: no answer; nothing is known of what was written but at the next start.
            BrokerRefused, NotAuthorized: see there.
        """
        until_s = world.monotonic_s() + COMMIT_TIMEOUT_S
        while not self._is_committed(records, letters, until_s):
            pass

    def _is_committed(
        self, records: Mapping[bytes, bytes | None], letters: Sequence[DeadLetter], until_s: float
    ) -> bool:
        """Try one transaction; False if it was aborted for a reason that passes."""
        refused: list[tuple[DeadLetter, KafkaError]] = []
        try:
            self._producer.begin_transaction()
            for letter in letters:
                self._queue(
                    letter.topic, *letter.forms[0], on_delivery=partial(_add_refused, refused, letter)
                )
            for key, value in records.items():
                self._queue(self.topic, key, value, partition=0)
            if letters:
                self._producer.flush(BROKER_TIMEOUT_S)  # so that their reports are served
            self._repeated(partial(self._producer.commit_transaction, BROKER_TIMEOUT_S), until_s)
            return True
        except KafkaException as error:
            self._check(error.args[0], error)
            if not error.args[0].txn_requires_abort():
                raise as_clear_error(error.args[0], self._bootstrap, f"topic {self.topic}") from error
            self._abort(error, refused, until_s)
            return False

    def _queue(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: object = None,
        **more: Any,
    ) -> None:
        """Hand a record over; wait while the client's queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, headers=cast(Any, headers), **more)
                return
            except BufferError:
                self._producer.poll(FULL_QUEUE_WAIT_S)

    def _abort(
        self, cause: KafkaException, refused: Sequence[tuple[DeadLetter, KafkaError]], until_s: float
    ) -> None:
        """Abort the transaction, and shorten the letters that were too large.

        Raises what has failed it if that does not pass, else what fails the abort.
        """
        failed: KafkaException | None = None
        try:
            self._repeated(partial(self._producer.abort_transaction, BROKER_TIMEOUT_S), until_s)
        except KafkaException as error:
            failed = error
        too_large = [letter for letter, error in refused if error.code() == KafkaError.MSG_SIZE_TOO_LARGE]
        for letter in too_large:
            letter.shorten()
        if world.monotonic_s() > until_s or not (too_large or _passes(cause.args[0])):
            topic, reason = (refused[0][0].topic, refused[0][1]) if refused else (self.topic, cause.args[0])
            raise as_clear_error(reason, self._bootstrap, f"topic {topic}") from cause
        if failed is not None:
            self._check(failed.args[0], failed)
            raise as_clear_error(failed.args[0], self._bootstrap) from failed

    def _repeated(self, call: Callable[[], object], until_s: float) -> None:
        """Make a call, and make it again while its answer is lost, until a time."""
        while True:
            try:
                call()
                return
            except KafkaException as error:
                is_final = error.args[0].txn_requires_abort() or is_producer_lost(error.args[0])
                if is_final or not error.args[0].retriable() or world.monotonic_s() > until_s:
                    raise

    def _check(self, error: KafkaError, cause: KafkaException) -> None:
        if is_producer_lost(error):
            raise ZombieDriver(
                f"a newer driver has taken over group {self._group}, or the broker has ended a transaction "
                "of this one that took too long; only one driver may run per spout, this one stops"
            ) from cause


def _passes(error: KafkaError) -> bool:
    """Return whether a new transaction may succeed where this one was aborted.

    After a refused record the client's next one on its partition is out of sequence, once.
    """
    passing = KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    return error.retriable() or error.code() in passing


_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""What becomes of the other records where one was refused."""


def _add_refused(
    refused: list[tuple[DeadLetter, KafkaError]], letter: DeadLetter, error: KafkaError | None, _sent: object
) -> None:
    if error is not None and error.code() not in _PURGED:
        refused.append((letter, error))
