"""Simulates the Producer: the interface of confluent's, idempotent and transactional.

Invariant: an error that needs an abort, or is fatal, is raised by every transactional call until it is dealt
with; a fatal one is also raised once by ``poll`` or ``flush``, as confluent's client does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree.testing.kafka.broker.network import RETRY_S, Network, timed_out
from acktree.testing.kafka.broker.offsets import epoch_of
from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.kafka.clients.sender import Place, Sender
from acktree.testing.virtual.errors import NotSimulated

OFFSETS_RETRY_S = 0.5
"""How long librdkafka waits before it sends offsets of a partition again that the broker does not know."""


@dataclass(eq=False)
class GroupMetadata:
    """The membership of a consumer, for a transactional producer."""

    group: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass
class TransactionState:
    """The state of a transactional producer."""

    name: str
    timeout_ms: int
    phase: str = "new"
    """new, ready, open, ending"""
    identity: tuple[int, int] | None = None
    abortable: KafkaError | None = None
    has_content: bool = False
    """Whether the broker knows of the transaction."""
    failed: int = 0
    """How many of its records were not written."""
    places: set[Place] = field(default_factory=set)
    """Where it writes."""
    written: set[Place] = field(default_factory=set)
    """Where this epoch has written."""
    gaps: set[Place] = field(default_factory=set)
    """Where a refused or purged batch has left a gap in the sequence numbers: librdkafka does not close it,
    so the next batch there also fails, with OUT_OF_ORDER_SEQUENCE_NUMBER; only then does it start again."""

    def start(self, identity: tuple[int, int]) -> None:
        """Continue with a new epoch."""
        self.identity = identity
        self.written.clear()

    def clear(self) -> None:
        """Forget the last transaction."""
        error = self.abortable
        if error is not None and error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.gaps.clear()
            self.written.clear()
        self.abortable, self.has_content, self.failed = None, False, 0
        self.places.clear()


class SimulatedProducer(Sender):
    """A Producer of a simulated cluster."""

    def __init__(self, network: Network, settings: dict[str, Any]) -> None:
        super().__init__(network, settings)
        self._backoff_s = float(settings.get("retry.backoff.ms", 100)) / 1000
        """How long offsets wait while the last transaction is ending; records and a start wait less."""
        self._interrupted = ""
        """The call that has timed out, or that a fatal error has ended while it was flushing: librdkafka goes
        on with it, and it has to be repeated before any other call."""
        self._transaction: TransactionState | None = None
        if name := settings.get("transactional.id"):
            timeout_ms = int(settings.get("transaction.timeout.ms", 60_000))
            self._transaction = TransactionState(str(name), timeout_ms)

    def __getattr__(self, name: str) -> Any:
        raise NotSimulated(f"Producer.{name} is not simulated; test this against a real Kafka")

    # Records of a transaction.

    def _check_produce(self) -> None:
        state = self._transaction
        if state is not None and (state.phase != "open" or state.abortable is not None or self._interrupted):
            raise KafkaException(KafkaError(KafkaError._STATE, "Local: Erroneous state"))

    def _not_written(self, error: KafkaError, refused: Place | None = None) -> None:
        state = self._transaction
        if state is None:
            return
        state.failed += 1
        if refused is not None:
            state.gaps.add(refused)
        if refused is not None and state.abortable is None:
            text = "a record of the transaction was not written"
            state.abortable = KafkaError(error.code(), text, txn_requires_abort=True)

    def _has_gap(self, place: Place) -> bool:
        return self._transaction is not None and place in self._transaction.gaps

    def _is_lost(self) -> bool:
        return self._transaction is not None and self._transaction.abortable is not None

    def _unwritten(self, place: Place) -> int:
        state = self._transaction
        is_known = state is not None and place in state.places
        return KafkaError.INVALID_PRODUCER_EPOCH if is_known else KafkaError._PURGE_QUEUE

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop what is queued; the broker misses its sequence numbers then."""
        if self._transaction is not None:
            queued = {place for place, queue in self._queues.items() if queue}
            self._transaction.gaps |= queued & self._transaction.written
        super().purge(in_queue, in_flight, blocking)

    # Transactions.

    def _open_transaction(self, place: Place) -> Any:
        """Return the transaction to write in, None if there is none, False while the last one is ending."""
        state = self._transaction
        if state is None:
            return None
        assert state.identity is not None
        entry = self._cluster.transactions.begin(state.name, *state.identity)
        if entry is None:
            return False
        state.has_content = True
        state.places.add(place)
        state.written.add(place)
        try:
            log = self._cluster.log(*place)
        except Refused:
            return entry.transaction
        entry.partitions[log] = None
        return entry.transaction

    def _state(self, call: str, *phases: str) -> TransactionState:
        """Return the state, if a transactional call is allowed in it."""
        self._network.enter(call)
        if self._interrupted not in ("", call):
            text = (
                f"Conflicting {self._interrupted.removeprefix('producer.')} API call is already in progress"
            )
            raise KafkaException(KafkaError(KafkaError._CONFLICT, text, retriable=True))
        self._interrupted = ""
        if self._transaction is None:
            raise KafkaException(
                KafkaError(KafkaError._NOT_CONFIGURED, "Local: Functionality not configured")
            )
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        if self._transaction.phase not in phases:
            if self._transaction.abortable is not None:
                raise KafkaException(self._transaction.abortable)
            text = f"Operation not valid in state {self._transaction.phase}"
            raise KafkaException(KafkaError(KafkaError._STATE, text))
        return self._transaction

    def _transactional(self, refusal: Refused) -> KafkaException:
        """Return the error of a transactional request, and remember what it means for this producer."""
        if refusal.code in (KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            self._set_fenced()
            assert self._fatal is not None
            return KafkaException(self._fatal)
        error = KafkaError(refusal.code, txn_requires_abort=True)
        assert self._transaction is not None
        self._transaction.abortable = error
        return KafkaException(error)

    def init_transactions(self, timeout: float = -1, /) -> None:
        """Get producer id and epoch; end what a predecessor has left open."""
        state = self._state("producer.init_transactions", "new")
        until_s = float("inf") if timeout is None or timeout < 0 else self._kernel.now_s + timeout
        self._interrupted = "producer.init_transactions"
        while True:
            self._ask("producer.init_transactions", until_s)
            identity = self._cluster.transactions.init(state.name, state.timeout_ms)
            if identity is not None:
                break
            if self._kernel.now_s >= until_s:
                raise timed_out(is_retriable=True)
            self._kernel.sleep(RETRY_S / 4)
        state.start(identity)
        self._network.respond("producer.init_transactions", is_retriable=True)
        self._interrupted = ""
        state.phase = "ready"

    def begin_transaction(self) -> None:
        """Begin; nothing is sent yet."""
        state = self._state("producer.begin_transaction", "ready")
        state.phase = "open"
        state.clear()

    def send_offsets_to_transaction(
        self, positions: Iterable[TopicPartition], group_metadata: GroupMetadata, timeout: float = -1, /
    ) -> None:
        """Add offsets to the transaction."""
        group, member = group_metadata, group_metadata.member_id or group_metadata.instance_id or ""
        state = self._state("producer.send_offsets_to_transaction", "open")
        if state.abortable is not None:
            raise KafkaException(state.abortable)
        until_s = float("inf") if timeout is None or timeout < 0 else self._kernel.now_s + timeout
        while True:
            self._ask("producer.send_offsets_to_transaction", until_s)
            assert state.identity is not None
            try:
                entry = self._cluster.transactions.begin(state.name, *state.identity)
                if entry is not None:
                    committer = self._cluster.group(group.group)
                    committer.check_commit(member, group.generation, in_transaction=True)
                    break
            except Refused as refusal:
                raise self._transactional(refusal) from None
            if self._kernel.now_s >= until_s:
                raise timed_out(is_retriable=True)
            self._kernel.sleep(self._backoff_s)
        state.has_content = True
        offsets = [
            (place.topic, place.partition, place.offset, place.metadata, epoch_of(place))
            for place in positions
        ]
        while True:
            codes = {self._cluster.why_unacceptable(offset) for offset in offsets}
            good = [offset for offset in offsets if self._cluster.why_unacceptable(offset) is None]
            if good:
                entry.groups[group.group] = None
                committer.commit(good, member, group.generation, "", entry.transaction)
            self._network.respond("producer.send_offsets_to_transaction", is_retriable=True)
            if (
                KafkaError.UNKNOWN_TOPIC_OR_PART not in codes
                or self._kernel.now_s + OFFSETS_RETRY_S > until_s
            ):
                break
            self._kernel.sleep(OFFSETS_RETRY_S)
            self._ask("producer.send_offsets_to_transaction", until_s)
        if refused := codes - {None}:
            raise self._transactional(Refused(min(code or 0 for code in refused)))

    def commit_transaction(self, timeout: float = -1, /) -> None:
        """Flush and commit."""
        self._end("producer.commit_transaction", timeout, is_commit=True)

    def abort_transaction(self, timeout: float = -1, /) -> None:
        """Drop what is queued, and abort."""
        self._end("producer.abort_transaction", timeout, is_commit=False)

    def _end(self, call: str, timeout: float | None, *, is_commit: bool) -> None:
        state = self._state(call, "open", "ending")
        until_s = float("inf") if timeout is None or timeout < 0 else self._kernel.now_s + timeout
        if is_commit:
            if state.abortable is not None:
                raise KafkaException(state.abortable)
            self._send_now()
        else:
            super().purge()  # this one leaves no gap
        self._interrupted = call
        while self._open or self._sending:
            self._serve()
            if self._kernel.now_s >= until_s:
                raise timed_out(is_retriable=True)
            self._wait(min(RETRY_S, until_s - self._kernel.now_s))
        self._serve()
        self._interrupted = ""
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        if is_commit and state.failed and state.abortable is None:
            text = f"{state.failed} message(s) failed delivery (see individual delivery reports)"
            state.abortable = KafkaError(KafkaError._INCONSISTENT, text, txn_requires_abort=True)
        if is_commit and state.abortable is not None:
            raise KafkaException(state.abortable)
        assert state.identity is not None
        if state.has_content:
            state.phase, self._interrupted = "ending", call
            self._ask(call, until_s)
            try:
                if is_commit:
                    self._cluster.before_commit(self._network.process)
                self._cluster.transactions.end(state.name, *state.identity, is_commit)
            except Refused as refusal:
                self._interrupted = ""
                raise self._transactional(refusal) from None
            self._network.respond(call, is_retriable=True)
            self._interrupted = ""
        state.phase = "ready"
        state.clear()

    def _ask(self, call: str, until_s: float) -> None:
        self._network.request(call, max(until_s - self._kernel.now_s, 0.0), is_retriable=True)
