"""Checks whether Spark runs a spout right now, by its driver's reports on T.stats and the broker's clock.

Invariant: only a recent report proves it. If nothing can be read, nothing is known; nor does silence prove
anything, as Spark's driver reports between its batches.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from acktree.console.view.cluster import what_is_unread
from acktree.console.view.reports import SILENT_AFTER_S
from acktree.core import world
from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    listed_offset,
    make_admin,
    make_consumer,
    make_producer,
    wait_until_delivered,
)
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.log_reader import Found, LogReader, reader_settings
from acktree.core.kafka.settings import Settings, producer_settings
from acktree.core.reports.last_error import facts_of
from acktree.core.reports.stats import DRIVER, ENGINE, SPARK, STARTING, STOPPED, Report, decode_report
from acktree.core.topology.file import stats_topic
from acktree.wire.errors import AcktreeError, MalformedRecord

BATCH = 1_000
DELIVERY_S = 5.0
"""How long to wait for the broker's answer that says what its time is."""


class RunBySpark(AcktreeError):
    """A driver in Spark is running the spout: stop it first, or give ``--take-over``."""


class _Appended(NamedTuple):
    offset: int
    time_ms: int


def refuse_spark(
    bootstrap: str, topology: str, spout: str, user: Settings, warn: Callable[[str], object]
) -> None:
    """Refuse to run a spout that a driver in Spark has reported within SILENT_AFTER_S.

    Raises:
        RunBySpark: one has; the text says where it runs, and when it last reported.
    """
    try:
        found = _newest_of_spark(bootstrap, topology, spout, user)
    except AcktreeError as error:
        warn(f"cannot check whether Spark runs spout {spout}: {error}")
        return
    if found is not None:
        report, age_s = found
        facts = facts_of(report.values)
        raise RunBySpark(
            f"Spark is running spout {spout} of topology {topology}: its driver, process {facts.pid} on "
            f"host {facts.host}, last reported {age_s:.1f} s ago; stop it first, or give --take-over"
        )


def _newest_of_spark(
    bootstrap: str, topology: str, spout: str, user: Settings
) -> tuple[Report, float] | None:
    """Return the newest report of the spout's driver, and its age, if that runs in Spark; else None.

    Raises:
        NotAuthorized, BrokerUnreachable: T.stats may not be read, or no broker answers.
    """
    place = TopicPartition(stats_topic(topology), 0)
    now = _append(bootstrap, place.topic, spout, user)
    if now is None:
        return None
    since_ms = now.time_ms - int(1000 * SILENT_AFTER_S)
    running: tuple[int, Report] | None = None
    for message in _read(bootstrap, topology, place, since_ms, now.offset, user):
        try:
            report = decode_report(message.value() or b"")
        except MalformedRecord:
            continue
        if report.role not in ("spout", DRIVER) or report.component != spout or STARTING in report.values:
            continue
        is_running = report.values.get(ENGINE) == SPARK and STOPPED not in report.values
        running = (message.timestamp()[1], report) if is_running else None
    if running is None or running[0] < since_ms:  # a clock that was set back makes older ones look newer
        return None
    append_ms, report = running
    return report, max(0.0, (now.time_ms - append_ms) / 1000)


def _append(bootstrap: str, topic: str, spout: str, user: Settings) -> _Appended | None:
    """Report that a driver of the spout starts; return where and when the broker has appended that.

    None where the broker has not taken it in time, or keeps another time than its own.
    """
    appended: list[_Appended] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        kind, time_ms = message.timestamp()
        if error is None and kind == TIMESTAMP_LOG_APPEND_TIME:
            appended.append(_Appended(message.offset() or 0, time_ms))

    user = {name: value for name, value in user.items() if not name.startswith("transaction")}
    settings = producer_settings(bootstrap, user, delivery_report_only_error=False)
    producer = make_producer({**settings, "on_delivery": on_delivery})
    report = Report(DRIVER, spout, f"{spout}@{world.process_name()}", world.wall_ms(), {STARTING: 1})
    with clear_errors(bootstrap, f"topic {topic}"):
        producer.produce(topic, report.encode(), report.key())
        wait_until_delivered(producer, DELIVERY_S)
    return appended[0] if appended else None


def _read(
    bootstrap: str, topology: str, place: TopicPartition, since_ms: int, end: int, user: Settings
) -> Iterator[Message]:
    """Yield what was appended since a time, up to an offset.

    Raises:
        BrokerUnreachable, BrokerRefused, NotAuthorized: it could not be read up to there.
    """
    admin = make_admin(bootstrap, user)
    group = f"{topology}.registry"  # the one that every role may see
    with clear_errors(bootstrap, f"topic {place.topic}"):
        asked = {place: cast(Any, OffsetSpec).for_timestamp(since_ms)}
        (answer,) = admin.list_offsets(asked, request_timeout=BROKER_TIMEOUT_S).values()
        start = listed_offset(answer)
    if not 0 <= start < end:
        return
    consumer = make_consumer(reader_settings(bootstrap, group, user))
    reader, at = LogReader(consumer, bootstrap, group, user), (place.topic, place.partition)
    try:
        reader.begin({at: start})
        until_s = world.monotonic_s() + BROKER_TIMEOUT_S
        while at in reader.places and reader.next_offset(at) < end:
            for log_range in reader.read(BATCH, max(0.0, until_s - world.monotonic_s())):
                if log_range.found in (Found.GONE, Found.FELL):
                    raise BrokerRefused(f"topic {place.topic} cannot be read: {what_is_unread(log_range)}")
                yield from (record for record in log_range.records if (record.offset() or 0) < end)
            if world.monotonic_s() > until_s:
                raise BrokerUnreachable(f"{place.topic} was not read up to offset {end} in time")
    finally:
        consumer.close()
