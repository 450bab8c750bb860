"""Running a bolt over a batch of input records, one loop for each kind of bolt.

Invariant: one record's exception fails that tuple alone; a record with a broken header is set aside, counted
and logged with its coordinates. A Misuse or a failed delivery is no tuple's fault and ends the worker.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from confluent_kafka import KafkaError

from acktree.producers.batch import BatchCollector
from acktree.producers.bolt import AnyBolt, BasicBolt, BatchBolt, Bolt, Emit
from acktree.producers.collector import Collector
from acktree.producers.errors import DeliveryFailed, Misuse
from acktree.producers.intake import Intake
from acktree.producers.tuples import IN_HAND, Hand, Record, Tuple
from acktree.schemas.errors import MalformedRecord, UnknownVersion

log = logging.getLogger("acktree.bolt")

FindHand = Callable[[str, int], Hand]
CheckError = Callable[[KafkaError], None]


def reason_of(error: BaseException) -> str:
    """Return what travels to the spout: the exception's type and text.

    >>> reason_of(ValueError("no such word"))
    'ValueError: no such word'
    """
    return f"{type(error).__name__}: {error}"


class Execution(Protocol):
    """How one kind of bolt is run over a batch."""

    def run(self, records: Iterable[Record]) -> None:
        """Execute every record."""
        ...


def make_execution(
    bolt: AnyBolt, collector: Collector, intake: Intake, check: CheckError, hand: FindHand
) -> Execution:
    """Return the execution for a bolt's kind."""
    if isinstance(bolt, BasicBolt):
        return BasicExecution(bolt, collector, intake, check)
    if isinstance(bolt, BatchBolt):
        return BatchExecution(bolt, collector, intake, check)
    assert isinstance(bolt, Bolt), bolt
    return HandExecution(bolt, collector, intake, check, hand)


class BasicExecution:
    """Executes a BasicBolt: each tuple is done when ``execute`` returns, so none stays in hand."""

    def __init__(self, bolt: BasicBolt, collector: Collector, intake: Intake, check: CheckError) -> None:
        self._bolt, self._collector, self._intake, self._check = bolt, collector, intake, check

    def run(self, records: Iterable[Record]) -> None:
        """Execute and ack or fail every record."""
        collector, check, anchors_of = self._collector, self._check, self._intake.anchors_of
        execute, ack = self._bolt.execute, collector.ack
        emit = Emit(collector)
        executed = 0
        for record in records:
            if (wrong := record.error()) is not None:
                check(wrong)
                continue
            try:
                tuple = Tuple(record, anchors_of(record), collector)
            except (MalformedRecord, UnknownVersion) as error:
                set_aside(record, error, collector)
                continue
            emit.current = tuple
            executed += 1
            try:
                execute(tuple, emit)
            except (Misuse, DeliveryFailed):
                raise
            except Exception as error:
                fail(tuple, error, collector)
            else:
                ack(tuple)
        emit.current = None
        collector.counters.executed += executed


class BatchExecution:
    """Executes a BatchBolt: every tuple is done when ``execute`` returns, so none stays in hand."""

    def __init__(self, bolt: BatchBolt, collector: Collector, intake: Intake, check: CheckError) -> None:
        self._bolt, self._collector, self._intake, self._check = bolt, collector, intake, check
        self._batch = BatchCollector(collector)

    def run(self, records: Iterable[Record]) -> None:
        """Execute all records as one batch and ack those that were not failed."""
        collector, anchors_of = self._collector, self._intake.anchors_of
        tuples: list[Tuple] = []
        for record in records:
            if (wrong := record.error()) is not None:
                self._check(wrong)
                continue
            try:
                tuples.append(Tuple(record, anchors_of(record), collector))
            except (MalformedRecord, UnknownVersion) as error:
                set_aside(record, error, collector)
        if not tuples:
            return
        try:
            self._bolt.execute(tuples, self._batch)
        except (Misuse, DeliveryFailed):
            raise
        except Exception as error:
            for tuple in tuples:
                if tuple._state is IN_HAND:
                    fail(tuple, error, collector)
        self._batch.finish(tuples)
        collector.counters.executed += len(tuples)


class HandExecution:
    """Executes a Bolt, which acks by itself: tuples are in hand from here until then."""

    def __init__(
        self, bolt: Bolt, collector: Collector, intake: Intake, check: CheckError, hand: FindHand
    ) -> None:
        self._bolt, self._collector, self._intake, self._check = bolt, collector, intake, check
        self._find_hand = hand

    def run(self, records: Iterable[Record]) -> None:
        """Execute every record; the bolt acks or fails it now or later."""
        collector = self._collector
        for record in records:
            if (wrong := record.error()) is not None:
                self._check(wrong)
                continue
            try:
                anchors = self._intake.anchors_of(record)
            except (MalformedRecord, UnknownVersion) as error:
                set_aside(record, error, collector)
                continue
            hand = self._find_hand(record.topic() or "", record.partition() or 0)
            tuple = Tuple(record, anchors, collector, hand)
            hand[tuple.offset] = tuple
            collector.counters.executed += 1
            try:
                self._bolt.execute(tuple, collector)
            except (Misuse, DeliveryFailed):
                raise
            except Exception as error:
                fail(tuple, error, collector)


def fail(tuple: Tuple, error: Exception, collector: Collector) -> None:
    """Fail a tuple with an exception, unless the bolt has said something of it before."""
    tracked = "" if tuple.tracked else "; it is untracked, so nobody emits it again"
    log.warning(
        "%r failed: %s%s", tuple, reason_of(error), tracked, exc_info=error, extra={"action": "tuple_failed"}
    )
    if tuple._state is IN_HAND:
        collector.fail(tuple, reason_of(error))


def set_aside(record: Record, error: Exception, collector: Collector) -> None:
    """Pass over a record that cannot be a tuple; its trees, if it has any, time out and are replayed."""
    collector.counters.set_aside += 1
    log.warning(
        "record %s[%s]@%s set aside: %s",
        record.topic(),
        record.partition(),
        record.offset(),
        error,
        extra={"action": "record_set_aside"},
    )
