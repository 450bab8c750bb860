"""Sends the records of a simulated producer to the broker: queues, batches and delivery reports.

Invariant: records of one partition arrive in order. When its process dies, nothing, a prefix or everything of
the unacknowledged records arrives, partition by partition.
"""

from collections import deque
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from acktree.testing.kafka.broker.log import StoredRecord, Transaction
from acktree.testing.kafka.broker.metadata import list_topics
from acktree.testing.kafka.broker.network import RETRY_S, Network
from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.kafka.clients.batches import (
    Limits,
    OnDelivery,
    Queued,
    as_bytes,
    as_headers,
    parts_of,
    refusals_of,
    size_of,
)
from acktree.testing.kafka.clients.message import SimulatedMessage
from acktree.testing.kafka.clients.murmur2 import murmur2
from acktree.testing.virtual.kernel import Timer

Place = tuple[str, int]
Answer = tuple[StoredRecord | None, KafkaError | None]


class Sender:
    """Sends the records of one producer."""

    def __init__(self, network: Network, settings: dict[str, Any]) -> None:
        self._network, self._kernel, self._cluster = network, network.kernel, network.cluster
        self._settings = settings
        self._on_delivery: OnDelivery | None = settings.get("on_delivery")
        self._only_errors = str(settings.get("delivery.report.only.error", "false")).lower() == "true"
        self._linger_s = float(settings.get("linger.ms", settings.get("queue.buffering.max.ms", 5))) / 1000
        usual_ms = 300_000
        if "transactional.id" in settings:  # as librdkafka adjusts it
            usual_ms = settings.get("transaction.timeout.ms", 60_000)
        timeout_ms = float(settings.get("message.timeout.ms", settings.get("delivery.timeout.ms", usual_ms)))
        self._timeout_s = timeout_ms / 1000 or float("inf")
        self._limits = Limits.of(settings)
        self._queues: dict[Place, deque[Queued]] = {}
        self._sending: dict[Place, int] = {}
        self._lingering: dict[Place, Timer] = {}
        """What will send the queue of a partition when it has waited long enough."""
        self._reports: deque[tuple[OnDelivery, KafkaError | None, SimulatedMessage]] = deque()
        self._open = 0
        self._partitions: dict[str, int] = {}
        self._wakes: list[Any] = []
        self._fatal: KafkaError | None = None
        self._is_fatal_raised = True
        """Whether ``poll`` or ``flush`` has raised the fatal error: they do that once."""
        self._missing: set[str] = set()
        """Topics that the broker has said to be missing."""
        self._propagation_s = float(settings.get("topic.metadata.propagation.max.ms", 30_000)) / 1000
        network.process.at_death.append(self._die)

    # What a transactional producer adds.

    def _check_produce(self) -> None:
        """Raise KafkaException unless a record may be queued at present."""

    def _open_transaction(self, _place: Place) -> Any:
        """Return the transaction to write in, None if there is none, False while the last one is ending."""
        return None

    def _not_written(self, _error: KafkaError, _refused: Place | None = None) -> None:
        """A record was not written; ``_refused``: the broker has refused a batch for this partition."""

    def _has_gap(self, _place: Place) -> bool:
        """Return whether the broker misses a batch."""
        return False

    def _is_lost(self) -> bool:
        """Return whether the transaction has to be aborted anyway."""
        return False

    def _unwritten(self, _place: Place) -> int:
        """Return the error of a record that a fenced producer has not written."""
        return KafkaError._PURGE_QUEUE

    def __len__(self) -> int:
        return self._open + len(self._reports)

    # Records.

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Queue a record. Raises BufferError, KafkaException, as confluent's."""
        self._network.enter("producer.produce")
        if self._fatal is not None:
            raise KafkaException(
                KafkaError(KafkaError._FATAL, "Unable to produce message: Local: Fatal error")
            )
        self._check_produce()
        if len(self) >= self._limits.queued:
            raise BufferError("Local: Queue full")
        keyed, valued, held = as_bytes(key), as_bytes(value), as_headers(headers)
        if size_of(keyed, valued, *parts_of(held)) > self._limits.record_bytes:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "Broker: Message size too large"))
        number = self._partition_of(topic, partition, keyed)
        report_to, now_s = on_delivery or callback or self._on_delivery, self._kernel.now_s
        record = Queued(topic, number, keyed, valued, held, timestamp or None, report_to, now_s)
        place = topic, number
        self._queues.setdefault(place, deque()).append(record)
        self._open += 1
        if place not in self._sending:
            self._send_later(place, self._linger_s)

    def _partition_of(self, topic: str, partition: int, key: bytes | None) -> int:
        """Return the partition of a record, -1 while the topic is not known."""
        count = self._partitions.get(topic)
        if count is None:
            found = self._cluster.topics.get(topic) if self._network.is_up else None
            if found is None:
                if topic in self._missing:
                    raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC, "Local: Unknown topic"))
                return partition
            count = self._partitions[topic] = len(found.partitions)
        if partition < 0:
            if key is None:
                return self._kernel.random.randrange(count)
            return (murmur2(key) & 0x7FFFFFFF) % count
        if partition >= count:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, "Local: Unknown partition"))
        return partition

    def _resolve(self, place: Place, queue: deque[Queued]) -> bool:
        """Give records of a topic that was not known their partitions; return whether there was none."""
        topic = place[0]
        if topic in self._partitions:
            return True
        if topic in self._cluster.topics:
            records = list(queue)
            queue.clear()
            for record in records:
                try:
                    record.partition = self._partition_of(topic, record.partition, record.key)
                except KafkaException as error:
                    self._report(record, None, error.args[0])
                    continue
                self._queues.setdefault((topic, record.partition), deque()).append(record)
                if (topic, record.partition) not in self._sending:
                    self._send_later((topic, record.partition), 0.0)
        elif self._kernel.now_s - queue[0].queued_s >= self._propagation_s:
            self._missing.add(topic)
            while queue:
                self._report(queue.popleft(), None, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        else:
            self._send_later(place, RETRY_S)
        self._wake()
        return False

    def _send_later(self, place: Place, linger_s: float) -> None:
        self._sending[place] = 0
        delay_s = linger_s + self._network.delay_s()
        self._lingering[place] = self._kernel.call_after(delay_s, lambda: self._send(place))

    def _send_now(self) -> None:
        """Send what waits for more records."""
        for place, timer in list(self._lingering.items()):
            timer.cancel()
            self._send_later(place, 0.0)

    def _send(self, place: Place) -> None:
        """The broker gets what is queued for a partition, and answers a little later."""
        self._sending.pop(place, None)
        self._lingering.pop(place, None)
        queue = self._queues.get(place)
        if not queue or not self._network.process.is_alive:
            return
        self._drop_expired(place, queue)
        if not queue:
            return
        process, age_s = self._network.process, self._kernel.now_s - queue[0].queued_s
        if self._cluster.holds(process, place[0], age_s):
            self._send_later(place, self._linger_s)
            return
        if not self._network.is_up or process.is_stopped or self._cluster.is_leaderless(*place):
            self._send_later(place, RETRY_S)
            return
        if not self._resolve(place, queue):
            return
        try:
            transaction = self._open_transaction(place)
        except Refused as refusal:
            self._refuse(place, queue, refusal)
            return
        if transaction is False:
            self._send_later(place, RETRY_S / 4)
            return
        records = self._limits.take_batch(queue)
        refusals = refusals_of(self._cluster, records)
        has_gap = self._has_gap(place)
        if not self._is_lost() and (refusals[0] is not None or has_gap):
            missed = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
            self._not_written(refusals[0] or missed, place)
        if self._is_lost() and refusals[0] is None:
            refusals = [KafkaError(KafkaError._PURGE_QUEUE)] * len(records)
        answers: list[Answer] = [
            (None, error) if error else (self._append(record, transaction), None)
            for record, error in zip(records, refusals, strict=True)
        ]
        self._sending[place] = len(records)
        took_s = self._network.transfer_s(sum(size_of(record.key, record.value) for record in records))
        self._kernel.call_after(
            took_s + self._network.delay_s(), lambda: self._answered(place, records, answers)
        )

    def _append(self, record: Queued, transaction: Transaction | None) -> StoredRecord:
        log = self._cluster.log(record.topic, record.partition)
        process = self._network.process
        first = None
        for _ in range(self._cluster.copies_of(process, record.topic)):
            stored = log.append(
                record.key, record.value, record.headers, record.timestamp_ms, transaction, process.name
            )
            first = first or stored
            self._cluster.on_append(process, record.topic)
        return first or log.as_lost(record.key, record.value, record.headers, record.timestamp_ms)

    def _answered(self, place: Place, records: list[Queued], answers: list[Answer]) -> None:
        self._sending.pop(place, None)
        for record, (stored, error) in zip(records, answers, strict=True):
            self._report(record, stored, error)
        if self._queues.get(place):
            self._send_later(place, 0.0)
        self._wake()

    def _drop_expired(self, place: Place, queue: deque[Queued]) -> None:
        while queue and self._kernel.now_s - queue[0].queued_s >= self._timeout_s:
            self._report(queue.popleft(), None, KafkaError(KafkaError._MSG_TIMED_OUT))
            self._wake()

    def _report(self, record: Queued, stored: StoredRecord | None, error: KafkaError | None) -> None:
        self._open -= 1
        if error is not None:
            self._not_written(error)
        if record.on_delivery is not None and (error is not None or not self._only_errors):
            self._reports.append((record.on_delivery, error, record.message(stored, error)))

    def _refuse(self, place: Place, queue: deque[Queued], refusal: Refused) -> None:
        is_lost = self._is_lost()  # then the client drops the records and asks nobody
        is_fenced = refusal.code == KafkaError.PRODUCER_FENCED and not is_lost
        unsent = KafkaError._PURGE_QUEUE if is_lost else refusal.code
        error = KafkaError(self._unwritten(place) if is_fenced else unsent)
        self._queues[place] = deque()
        for record in queue:
            self._report(record, None, error)
        if is_fenced:
            self._set_fenced()
        self._wake()

    def _set_fenced(self) -> None:
        self._is_fatal_raised = self._fatal is not None and self._is_fatal_raised
        self._fatal = KafkaError(
            KafkaError._FENCED, "Local: This instance has been fenced by a newer instance", fatal=True
        )

    def _die(self) -> None:
        """Of each partition's queue nothing, a prefix or everything arrives."""
        for place, queue in self._queues.items():
            if not queue or not self._network.is_up:
                continue
            try:
                transaction = self._open_transaction(place)
            except Refused:
                continue
            if transaction is False:
                continue
            records = list(queue)[: self._kernel.random.randint(0, len(queue))]
            for record in records if records and not any(refusals_of(self._cluster, records)) else ():
                self._append(record, transaction)

    # Serving.

    def poll(self, timeout: float = -1) -> int:
        """Serve delivery reports; wait for one if there is none."""
        self._network.turn("producer.poll")
        if self._is_fatal_raised and not self._reports and timeout != 0:
            self._wait(None if timeout < 0 else timeout)
        return self._serve()

    def _serve(self) -> int:
        served = 0
        while self._reports:
            on_delivery, error, message = self._reports.popleft()
            on_delivery(error, message)
            served += 1
        if not self._is_fatal_raised:
            self._is_fatal_raised = True
            assert self._fatal is not None
            raise KafkaException(self._fatal)
        return served

    def flush(self, timeout: float = -1) -> int:
        """Wait until nothing is on its way; return how much still is."""
        self._network.turn("producer.flush")
        until_s = float("inf") if timeout < 0 else self._kernel.now_s + timeout
        self._send_now()
        while True:
            self._serve()
            if not self._open or self._kernel.now_s >= until_s:
                return len(self)
            self._wait(until_s - self._kernel.now_s)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop what is queued."""
        self._network.enter("producer.purge")
        for place, queue in self._queues.items():
            while queue:
                self._report(queue.popleft(), None, KafkaError(KafkaError._PURGE_QUEUE))
            if (timer := self._lingering.pop(place, None)) is not None:
                timer.cancel()
                del self._sending[place]

    def _wait(self, timeout_s: float | None) -> None:
        self._wakes.append(self._kernel.current)
        self._kernel.wait(timeout_s, "a producer's broker")

    def _wake(self) -> None:
        wakes, self._wakes = self._wakes, []
        for task in wakes:
            self._kernel.wake(task)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return metadata, and know it from now on."""
        self._network.request("producer.list_topics", timeout)
        found = list_topics(self._cluster, topic)
        for name, about in found.topics.items():
            if about.error is None:
                self._missing.discard(name)
                self._partitions[name] = len(about.partitions)
            else:
                self._partitions.pop(name, None)
        return found
