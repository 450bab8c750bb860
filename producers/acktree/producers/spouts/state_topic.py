"""The state topic of a spout: written in transactions by its owner, read whole by the next one.

The owner holds a transactional id: the driver of a spout in Spark, or one task of a spout in Python.
Invariant: only the owner that started last can commit. A start has read everything when it reads its own
record, never because no more records come; an unreadable record stops it, with coordinates.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from acktree.core import world
from acktree.core.errors import BrokerRefused, BrokerUnreachable, TransactionTooSlow
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    FULL_QUEUE_WAIT_S,
    ask_bounds,
    make_consumer,
    make_producer,
    refuse_missing,
    retry_until_ready,
    wait_until_delivered,
)
from acktree.core.kafka.errors import (
    as_clear_error,
    clear_errors,
    is_producer_lost,
    may_be_fenced,
    unreachable,
)
from acktree.core.kafka.log_reader import Found, LogRange, LogReader, reader_settings
from acktree.core.kafka.settings import ANY_SIZE, Settings, producer_settings
from acktree.producers.collecting.arithmetic.transaction_limit import Passage
from acktree.producers.columns import NO_TIMESTAMP, Pairs
from acktree.producers.kafka.output import PARTITION_UA, wait_until_passed
from acktree.wire.dead_letter import Headers
from acktree.wire.errors import AcktreeError, MalformedRecord
from acktree.wire.state_records import (
    MAX_STATE_BYTES,
    START_KEY,
    StateStart,
    decode_state_start,
    encode_state_start,
)

log = logging.getLogger("acktree.spout")

MAX_RECORDS = 1_000
FENCE_WAIT_S = 0.1
FETCH_WAIT_MS = 20
"""A start reads up to its own record, and a fetch before that is committed waits for so long."""
TRANSACTION_TIMEOUT_MS = 15_000
"""For how long the open transaction of a dead task may hold up the start of another owner."""
READ_TIMEOUT_S = 90.0
"""How long a start waits for a record: longer than the open transaction of a dead driver may last."""
COMMIT_TIMEOUT_S = 60.0
"""How long a transaction is repeated whose answer is lost: as long as librdkafka repeats a commit."""
PASS_TIMEOUT_S = 10.0
"""How long output that is sent ahead of its state may take: most of TRANSACTION_TIMEOUT_MS."""

OutputRecord = tuple[str, bytes | str | None, bytes | str | None, Pairs | None, int, int]
"""A record of a stage, or one of its acker updates: topic, value, key, headers, timestamp, partition."""


def control_record(topic: str, partition: int, value: bytes) -> OutputRecord:
    """Return a record without a key for one partition."""
    return topic, value, None, None, NO_TIMESTAMP, partition


class ZombieDriver(AcktreeError):
    """A newer process has taken over this spout, or this task of it; this one must stop."""


class UnreadableState(AcktreeError):
    """A record of a state topic is damaged, not acktree's, or of a newer version; nothing is skipped."""


Letter = tuple[bytes | str | None, bytes | str | None, Headers]
"""Key, value and headers of a dead letter."""


@dataclass(slots=True)
class DeadLetter:
    """A dead letter for a topic; ``forms`` are the whole one first, then shorter ones."""

    topic: str
    forms: list[Letter]

    def shorten(self) -> None:
        """Go on to the next form: the topic takes none of this size. Raises BrokerRefused: there is none."""
        if len(self.forms) == 1:
            raise BrokerRefused(
                f"topic {self.topic} rejects even a dead letter without the content of its record: "
                "raise the max.message.bytes of this topic"
            )
        del self.forms[0]


class States(Protocol):
    """What a start learns from a state topic."""

    def add(self, key: bytes, value: bytes | None, time_ms: int) -> None:
        """Add the newest record of a key; ``time_ms`` is its append time. Raises MalformedRecord."""
        ...


AnyStates = TypeVar("AnyStates", bound=States)


class StateTopic:
    """Reads the topic once, at the start, and writes it from then on."""

    def __init__(
        self,
        admin: AdminClient,
        bootstrap: str,
        user: Settings,
        group: str,
        topic: str,
        owner: str,
        *,
        start_key: bytes = START_KEY,
        version: int = 0,
        **ours: Any,
    ) -> None:
        """Connect to nothing yet; ``owner`` is the transactional id, ``ours`` are settings of the producer.

        ``group`` is the spout's, ``start_key`` that of the owner's record which begins it, and ``version``
        that of the topology.
        """
        self._admin, self._bootstrap, self._user = admin, bootstrap, user
        self._group, self.topic, self._owner, self._start_key = group, topic, owner, start_key
        self._version, self._fenced = version, ""
        self._sent: list[OutputRecord] = []
        """What the open transaction has already, if one is open between two calls."""
        self._began_s = 0.0
        settings = {**user, **ANY_SIZE}
        self._settings = producer_settings(bootstrap, settings, transactional_id=owner, linger_ms=0, **ours)
        self._timeout_s = float(self._settings.get("transaction.timeout.ms", 60_000)) / 1000

    def take_over(
        self, states: AnyStates, others: Callable[[AnyStates], Iterable[str]] = lambda _: ()
    ) -> AnyStates:
        """Fence the owner before, and return the states with all that it, or any other one, has committed.

        ``others`` returns, of what was read so far, the transactional ids that may hold the same slots: they
        are also fenced. Of two concurrent starts the later one in the topic reads the other.

        Raises:
            MissingTopic: the topic does not exist. UnreadableState: see its docstring.
            ZombieDriver: a newer owner has started meanwhile.
            BrokerUnreachable, BrokerRefused, NotAuthorized: see their docstrings.
        """
        self._refuse_missing()
        self._producer = make_producer(self._settings)
        self._fence(self._producer, self._owner)
        reader = self._reader()
        try:
            token = self._start()
            self._begin(reader)
            self._read(reader, states, token)
            if ended := list(others(states)):
                for owner in ended:
                    self._end(owner)
                self._read(reader, states, self._start())  # to the last commit of each
        finally:
            reader.consumer.close()
        return states

    def read_committed(self, states: AnyStates) -> AnyStates:
        """Return the states that are committed now; what is in an open transaction is missed.

        Raises what ``take_over`` raises, but ZombieDriver.
        """
        self._refuse_missing()
        reader = self._reader()
        try:
            self._begin(reader)
            self._read(reader, states, None)
        finally:
            reader.consumer.close()
        return states

    def _refuse_missing(self) -> None:
        if self.topic not in self._names():
            text = (
                f"topic {self.topic!r}, which holds the state of the spout, does not exist; create it with: "
                "acktree topology apply FILE. If it was deleted, records in flight may be emitted again"
            )
            refuse_missing(self._admin, self._bootstrap, self.topic, text)

    def _reader(self) -> LogReader:
        about = self._bootstrap, self._group, self._user
        settings = reader_settings(*about, fetch_wait_max_ms=FETCH_WAIT_MS)
        return LogReader(make_consumer(settings), *about)

    def _start(self) -> int:
        token = world.random_bits(63)
        self.commit({self._start_key: encode_state_start(StateStart(token, self._version))})
        return token

    def _end(self, owner: str) -> None:
        """Fence another owner for good: its transactional id is not used here."""
        self._fence(make_producer({**self._settings, "transactional.id": owner}), owner)

    def _fence(self, producer: Producer, owner: str) -> None:
        with clear_errors(self._bootstrap, f"transactional id {owner}"):
            retry_until_ready(lambda: producer.init_transactions(BROKER_TIMEOUT_S), wait_if_away=True)

    def _names(self) -> Mapping[str, object]:
        with clear_errors(self._bootstrap):
            names: Mapping[str, object] = self._admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
            return names

    def _begin(self, reader: LogReader) -> None:
        with clear_errors(self._bootstrap, f"topic {self.topic}"):
            # By its number: librdkafka takes half a second to find the beginning by itself.
            first, _ = ask_bounds(reader.consumer, TopicPartition(self.topic, 0))
        reader.begin({(self.topic, 0): first})

    def _read(self, reader: LogReader, states: States, token: int | None) -> None:
        """Read up to the start with a token, or to the end as it is found, and add the newest of each key.

        Kafka compacts late: of most keys there are thousands of records, and only the last one is decoded.
        """
        newest: dict[bytes, Message] = {}
        until_s, is_read = world.monotonic_s() + READ_TIMEOUT_S, False
        while not is_read:
            if world.monotonic_s() > until_s:
                raise BrokerUnreachable(
                    f"{self.topic} could not be read up to the record written by this start within "
                    f"{READ_TIMEOUT_S:g} s: the broker does not answer, or keeps a transaction of a "
                    "dead process open; start again once it has timed out"
                )
            for log_range in reader.read(MAX_RECORDS, 1.0):
                self._refuse(log_range)
                for message in log_range.records:
                    newest[key := message.key() or b""] = message
                    is_read |= key == self._start_key and self._is_start(message, token)
                until_s = world.monotonic_s() + READ_TIMEOUT_S
            if token is None:
                is_read = reader.is_at_end((self.topic, 0))
        for message in newest.values():
            self._add(states, message)

    def _refuse(self, log_range: LogRange) -> None:
        """Refuse to go on without records that the topic has held."""
        if log_range.found is Found.GONE:
            raise as_clear_error(log_range.error, self._bootstrap, f"topic {self.topic}")
        if log_range.found in (Found.DAMAGED, Found.FELL):
            what, _, _ = log_range.text.partition(":")
            raise UnreadableState(
                f"{what}: no record of a state topic may be skipped. To begin anew where the group of the "
                f"spout is, delete topic {self.topic}, and create it with: acktree topology apply FILE; "
                "records in flight may be emitted again"
            )
        if log_range.found is Found.REMOVED:
            log.warning("%s", log_range.text, extra={"action": log_range.action})

    def _is_start(self, message: Message, token: int | None) -> bool:
        with self._refused(message):
            return decode_state_start(message.value() or b"").token == token

    def _add(self, states: States, message: Message) -> None:
        with self._refused(message):
            states.add(message.key() or b"", message.value(), message.timestamp()[1])

    @contextmanager
    def _refused(self, message: Message) -> Iterator[None]:
        """Raise UnreadableState, with coordinates, for a record that cannot be decoded."""
        try:
            yield
        except MalformedRecord as error:
            raise UnreadableState(
                f"{message.topic()}/{message.partition()}/{message.offset()} cannot be read as the state of "
                f"a spout, and no record of a state topic may be skipped: {error}"
            ) from error

    def commit(
        self,
        records: Mapping[bytes, bytes | None],
        letters: Sequence[DeadLetter] = (),
        output: Sequence[OutputRecord] = (),
        *,
        timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        """Write states, dead letters and output in one transaction; what is not confirmed is repeated.

        A state of None is a tombstone. A letter that is too large for its topic is shortened.

        Raises:
            ZombieDriver: a newer owner has started, or the broker has ended the transaction of this one.
            BrokerUnreachable: no answer; what was written is unknown until the next start.
            TransactionTooSlow: a broker answers, but the records did not all reach it.
            BrokerRefused: the topic does not take a record, and the text says what to set; for any other
                reason, see its docstring.
            NotAuthorized: see its docstring.
        """
        until_s = world.monotonic_s() + timeout_s
        with self._unless_fenced():
            if self._sent and list(output[: len(self._sent)]) != self._sent:
                self._drop_sent(until_s)
            while not self._is_committed(records, letters, output, until_s):
                pass

    def send(self, output: Sequence[OutputRecord]) -> Passage:
        """Begin the transaction of the next commit with the output that it begins with.

        What does not pass within PASS_TIMEOUT_S is aborted: nothing of it is written. While no broker
        confirms anything it is tried again, for COMMIT_TIMEOUT_S.

        Raises:
            What ``commit`` raises.
        """
        until_s = world.monotonic_s() + COMMIT_TIMEOUT_S
        with self._unless_fenced():
            if self._sent:
                self._drop_sent(until_s)
            while (passage := self._try_to_send(output, until_s)) is None:
                pass
        return passage

    @contextmanager
    def _unless_fenced(self) -> Iterator[None]:
        self.check_fenced()
        try:
            yield
        except ZombieDriver as error:
            self._fenced = str(error)
            raise

    def _drop_sent(self, until_s: float) -> None:
        """Abort the transaction that has output which is not committed."""
        self._sent = []
        if (failed := self._end_transaction(until_s)) is not None:
            self._check(failed.args[0], failed)
            raise as_clear_error(failed.args[0], self._bootstrap) from failed

    def _try_to_send(self, output: Sequence[OutputRecord], until_s: float) -> Passage | None:
        """Send output once; None if it was aborted for a reason that passes."""
        try:
            self._begin_transaction()
            self._queue_all({}, (), output, [])
            passage = wait_until_passed(self._producer, len(output), self._began_s, PASS_TIMEOUT_S)
        except KafkaException as error:
            self._abort(error, {}, [], until_s, bytes_of({}, (), output))
            return None
        if passage is not None and passage.is_whole:
            self._sent = list(output)
            return passage
        self._drop_sent(until_s)
        if passage is None and world.monotonic_s() > until_s:
            raise self._too_slow(bytes_of({}, (), output), KafkaError(KafkaError._MSG_TIMED_OUT))
        return passage

    def _begin_transaction(self) -> None:
        self._producer.begin_transaction()
        self._began_s = world.monotonic_s()

    def check_fenced(self) -> None:
        """Raise ZombieDriver if a commit has: the driver commits once more when it is closed."""
        if self._fenced:
            raise ZombieDriver(self._fenced)

    def _is_committed(
        self,
        records: Mapping[bytes, bytes | None],
        letters: Sequence[DeadLetter],
        output: Sequence[OutputRecord],
        until_s: float,
    ) -> bool:
        """Try one transaction; False if it was aborted for a reason that passes."""
        refused: list[tuple[DeadLetter, KafkaError]] = []
        sent, self._sent = len(self._sent), []
        try:
            if not sent:
                self._begin_transaction()
            self._queue_all(records, letters, output[sent:], refused)
            if letters:
                wait_until_delivered(self._producer, BROKER_TIMEOUT_S)  # so that their reports are served
            self._repeated(partial(self._producer.commit_transaction, BROKER_TIMEOUT_S), until_s)
            return True
        except KafkaException as error:
            self._abort(error, records, refused, until_s, bytes_of(records, letters, output))
            return False

    def _queue_all(
        self,
        records: Mapping[bytes, bytes | None],
        letters: Sequence[DeadLetter],
        output: Sequence[OutputRecord],
        refused: list[tuple[DeadLetter, KafkaError]],
    ) -> None:
        """Hand all records over, as far as the client takes them.

        It takes none for a transaction that has failed meanwhile: the commit raises why.
        """
        try:
            for letter in letters:
                on_delivery = partial(_add_refused, refused, letter)
                self._queue(letter.topic, *letter.forms[0], on_delivery=on_delivery)
            self._queue_output(output)
            for key, value in records.items():
                self._queue(self.topic, key, value, partition=0)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise

    def _queue_output(self, output: Sequence[OutputRecord]) -> None:
        """Hand records over, each with one call of the client unless it does not take it immediately."""
        produce = self._producer.produce
        for each in output:
            topic, value, key, headers, timestamp_ms, partition = each
            try:
                produce(topic, value, key, partition, None, None, timestamp_ms, cast(Any, headers))
            except (BufferError, KafkaException):
                # which finds the same, and waits for what passes
                self._queue(topic, key, value, headers, partition, timestamp_ms)

    def _queue(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: object = None,
        partition: int = PARTITION_UA,
        timestamp_ms: int = 0,
        on_delivery: Any = None,
    ) -> None:
        """Hand a record over; wait while the client's queue is full, or does not know a partition yet."""
        until_s = world.monotonic_s() + BROKER_TIMEOUT_S
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery, None, timestamp_ms, cast(Any, headers)
                )
                return
            except BufferError:
                self._producer.poll(FULL_QUEUE_WAIT_S)
            except KafkaException as error:
                is_late = world.monotonic_s() > until_s
                if is_late or error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                self._producer.list_topics(topic, BROKER_TIMEOUT_S)  # else after minutes
                self._producer.poll(FULL_QUEUE_WAIT_S)

    def _abort(
        self,
        cause: KafkaException,
        records: Mapping[bytes, bytes | None],
        refused: Sequence[tuple[DeadLetter, KafkaError]],
        until_s: float,
        size: int,
    ) -> None:
        """Abort the transaction of this size, and shorten the letters that were too large.

        Raises what has failed it if that does not pass, or needs no abort, else what fails the abort.
        """
        self._check(cause.args[0], cause)
        if not cause.args[0].txn_requires_abort():
            raise as_clear_error(cause.args[0], self._bootstrap, f"topic {self.topic}") from cause
        failed = self._end_transaction(until_s)
        if failed is not None and may_be_fenced(cause.args[0]):
            self._check(failed.args[0], failed)
        too_large = [letter for letter, error in refused if error.code() == KafkaError.MSG_SIZE_TOO_LARGE]
        for letter in too_large:
            letter.shorten()
        passes = too_large or all(map(_passes, (cause.args[0], *(error for _, error in refused))))
        if world.monotonic_s() > until_s or not passes:
            if records and not refused and cause.args[0].code() in _TOO_LARGE:
                raise BrokerRefused(_about_largest(records, self.topic)) from cause
            topic, reason = (refused[0][0].topic, refused[0][1]) if refused else (self.topic, cause.args[0])
            if reason.code() in _EXPIRED:
                is_away = failed is not None  # else a broker has answered meanwhile
                away, slow = unreachable(self._bootstrap, reason), self._too_slow(size, reason)
                raise (away if is_away else slow) from cause
            raise as_clear_error(reason, self._bootstrap, f"topic {topic}") from cause
        if failed is not None:
            self._check(failed.args[0], failed)
            raise as_clear_error(failed.args[0], self._bootstrap) from failed

    def _too_slow(self, size: int, reason: KafkaError) -> TransactionTooSlow:
        return TransactionTooSlow(
            f"the broker at {self._bootstrap} answers, but did not take all of a transaction of "
            f"{size / 1e6:.1f} MB within {self._timeout_s:g} s ({reason.str()}): the link is too slow for "
            "it, or one of its partitions has no leader"
        )

    def _end_transaction(self, until_s: float) -> KafkaException | None:
        """Abort the transaction; return why that fails."""
        while True:
            try:
                self._repeated(partial(self._producer.abort_transaction, BROKER_TIMEOUT_S), until_s)
                return None
            except KafkaException as error:
                if not may_be_fenced(error.args[0]) or world.monotonic_s() > until_s:
                    return error
            world.sleep(FENCE_WAIT_S)

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
                f"a newer process has taken over transactional id {self._owner}, or the broker has ended a "
                "transaction of this process that took too long; only one may hold the id, so this one stops"
            ) from cause


def _passes(error: KafkaError) -> bool:
    """Return whether a new transaction may succeed where this one was aborted.

    After a refused record the client's next one on its partition is out of sequence, once. Records that have
    expired because no broker took them make the transaction inconsistent: its commit was never requested.
    """
    passing = *_EXPIRED, KafkaError._TIMED_OUT, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    return error.retriable() or may_be_fenced(error) or error.code() in passing


_EXPIRED = (KafkaError._MSG_TIMED_OUT, KafkaError._INCONSISTENT)
"""Of a record that no broker took in time, and of the transaction with it."""
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
"""By max.message.bytes, or by segment.bytes."""


def _about_largest(records: Mapping[bytes, bytes | None], topic: str) -> str:
    """Return what to do about records of which a state topic does not take the largest."""
    sizes = {key: len(key) + len(value or b"") for key, value in records.items()}
    key = max(sizes, key=sizes.__getitem__)
    parts, limit = key.decode().split("/", 2), max(MAX_STATE_BYTES, 2 * sizes[key])
    source = "/".join(parts[:2]) if len(parts) > 2 else ""  # a topic's id may also have slashes
    return (
        f"topic {topic} does not accept the state of {source or 'all partitions'}: {sizes[key]:,} bytes; "
        "nothing is committed until it accepts it. Run: kafka-configs.sh --bootstrap-server ADDRESS --alter "
        f"--topic {topic} --add-config max.message.bytes={limit},segment.bytes={2 * limit}"
    )


def bytes_of(
    records: Mapping[bytes, bytes | None], letters: Sequence[DeadLetter], output: Sequence[OutputRecord]
) -> int:
    """Return how large a transaction is, without headers."""
    contents = [
        *records.items(),
        *((key, value) for key, value, _ in (letter.forms[0] for letter in letters)),
        *((key, value) for _, value, key, *_ in output),
    ]
    return sum(len(key or b"") + len(value or b"") for key, value in contents)


_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""What becomes of the other records where one was refused."""


def _add_refused(
    refused: list[tuple[DeadLetter, KafkaError]], letter: DeadLetter, error: KafkaError | None, _sent: object
) -> None:
    if error is not None and error.code() not in _PURGED:
        refused.append((letter, error))
