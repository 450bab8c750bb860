"""The output of an at-least-once worker: flushes its records, then commits the input offsets.

Invariant: input offsets are committed only after the broker has acknowledged all their children and acks, so
a crash repeats inputs and loses none.
"""

from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, TopicPartition

from acktree.core import world
from acktree.core.kafka.settings import Settings, producer_settings
from acktree.core.reports.liveness import Liveness
from acktree.producers.errors import DeliveryFailed
from acktree.producers.kafka.fencing import end_transactions
from acktree.producers.kafka.member_commit import commit_offsets
from acktree.producers.kafka.output import STOP_TIMEOUT_S, BufferedProducer
from acktree.producers.kafka.record_limits import NO_LIMITS, Limits


class AtLeastOnce(BufferedProducer):
    """Flushes, then commits.

    While the broker is away, records wait without limit: the queue fills, then the worker waits. Control
    records have a separate producer, so they wait neither in the queue of the data nor behind data that a
    partition does not take: a broker answers the requests of one connection in order.
    """

    ack_interval_s = 0.005
    sends_acks_early = True
    commit_interval_s = 1.0
    commit_records = 100_000
    must_abort = False
    owner = b""

    def __init__(
        self,
        bootstrap: str,
        user: Settings,
        limits: Limits = NO_LIMITS,
        *,
        group: str = "",
        on_queue_full: Callable[[], None] = lambda: None,
        progress: Liveness | None = None,
    ) -> None:
        """``group``: the group whose previous owners' transactions are ended; empty if there is none.

        ``on_queue_full`` is called while a record waits for room, to send control records that need not wait.
        ``progress``: that of the loop that waits here for the broker.
        """
        self._on_queue_full = on_queue_full
        self._bootstrap, self._user, self._group = bootstrap, user, group
        settings = producer_settings(bootstrap, {**limits.settings, **user}, message_timeout_ms=0)
        super().__init__(settings, limits, progress)
        self._control = BufferedProducer(settings, progress=progress)

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record; see ``BufferedProducer.send``."""
        self._control.send(topic, partition, value)

    def send_at_once(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record, which never waits for data; see ``BufferedProducer.send``."""
        self._control.send(topic, partition, value)

    def serve(self) -> None:
        """Serve delivery reports. Raises DeliveryFailed."""
        super().serve()
        self._control.serve()

    def begin_stop(self) -> None:
        """From now on, wait no longer than STOP_TIMEOUT_S; may be called from a signal handler."""
        super().begin_stop()
        self._control.begin_stop()

    def fence_previous_owners(self, places: Sequence[tuple[str, int]], /) -> None:
        """End transactions that owners left open when the bolt was exactly once; we have none of our own."""
        if self._group:
            end_transactions(self._bootstrap, self._user, self._group, places, self._may_wait)

    def renew_stop(self) -> None:
        """Count STOP_TIMEOUT_S from now on, if a stop has begun."""
        super().renew_stop()
        self._control.renew_stop()

    def _wait_for_room(self) -> None:
        self._on_queue_full()
        super()._wait_for_room()
        self._control.serve()

    def flush_and_commit(
        self, consumer: Consumer, offsets: Sequence[TopicPartition], in_callback: bool = False
    ) -> bool:
        """Flush, then commit. Raises DeliveryFailed, KafkaException."""
        # Life of an ack, step 7.
        self._control.drain()
        self.drain()
        return not offsets or commit_offsets(consumer, offsets, None if in_callback else self._may_wait)

    def _may_wait(self) -> bool:
        """Return True: a commit may take longer. Raises DeliveryFailed when a stop has waited long enough."""
        if world.monotonic_s() > self._deadline_s:
            raise DeliveryFailed(
                f"the broker did not accept the last offsets within {STOP_TIMEOUT_S:g} s of the stop; "
                "their inputs will be read again unless they were committed"
            )
        return True
