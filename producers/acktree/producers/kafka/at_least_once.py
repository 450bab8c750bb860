"""The way out of a worker that flushes what it has written, and commits its inputs then.

Invariant: input offsets are committed only after all children and acks before them are acknowledged by the
broker, so a crash repeats inputs and loses none.
"""

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from acktree.producers.errors import DeliveryFailed
from acktree.producers.kafka.fencing import end_transactions
from acktree.producers.kafka.member_commit import commit_offsets
from acktree.producers.kafka.output import STOP_TIMEOUT_S, BufferedProducer
from acktree.producers.kafka.record_limits import NO_LIMITS, Limits
from acktree.schemas.clients import Settings, producer_settings


class AtLeastOnce(BufferedProducer):
    """Flush, then commit: a crash in between repeats inputs, never loses one.

    While the broker is away records wait without limit: the queue fills, then the worker waits. Control
    records have a producer of their own: they wait neither in the queue of data nor, as a broker answers the
    requests of one connection in turn, behind data that a partition does not take.
    """

    ack_interval_s = 0.005
    sends_acks_early = True
    commit_interval_s = 1.0
    commit_records = 100_000
    owner = b""

    def __init__(
        self, bootstrap: str, user: Settings, limits: Limits = NO_LIMITS, *, group: str = ""
    ) -> None:
        """``group`` is the one whose partitions are taken over; empty for who has none."""
        self._bootstrap, self._user, self._group = bootstrap, user, group
        settings = producer_settings(bootstrap, {**limits.settings, **user}, message_timeout_ms=0)
        super().__init__(settings, limits)
        self._control = BufferedProducer(settings)

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record; see there."""
        self._control.send(topic, partition, value)

    def send_at_once(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record; see there. They never wait for data."""
        self._control.send(topic, partition, value)

    def serve(self) -> None:
        """Take delivery reports in. Raises DeliveryFailed."""
        super().serve()
        self._control.serve()

    def hurry(self) -> None:
        """Wait no longer than STOP_TIMEOUT_S from here on; may be called from a signal handler."""
        super().hurry()
        self._control.hurry()

    def take_over(self, places: Sequence[tuple[str, int]], /) -> None:
        """End what owners left open that died when the bolt was exactly once; nothing of ours is open."""
        if self._group:
            end_transactions(self._bootstrap, self._user, self._group, places, self._may_wait)

    def _wait_for_room(self) -> None:
        self.while_full()
        super()._wait_for_room()
        self._control.serve()

    def settle(
        self, consumer: Consumer, offsets: Sequence[TopicPartition], in_callback: bool = False
    ) -> bool:
        """Flush, then commit. Raises DeliveryFailed, KafkaException."""
        self._control.drain()
        self.drain()
        return not offsets or commit_offsets(consumer, offsets, None if in_callback else self._may_wait)

    def _may_wait(self) -> bool:
        """Tell that a commit has time. Raises DeliveryFailed when a stop has waited long enough."""
        if time.monotonic() > self._deadline_s:
            raise DeliveryFailed(
                f"the broker has not taken the last offsets within {STOP_TIMEOUT_S:g} s of the stop; "
                "the inputs behind them will be read again, unless they are committed"
            )
        return True
