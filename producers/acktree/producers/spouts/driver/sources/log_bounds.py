"""Checks that unread records are still in the log: its start may overtake a reader, its end fall below one.

Invariant: no record is given up without ``failOnDataLoss=false``. The driver checks before it plans; a task
that comes too late for a planned offset raises the same error.
"""

import logging
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, ask_bounds
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.producers.ledger.task import SourceSlot
from acktree.producers.spouts.driver.sources.source_topics import TopicEnds
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import MAX_OFFSET, OffsetTooLarge
from acktree.wire.state_records import LogEpoch

log = logging.getLogger("acktree.spark")

END_CHECKS, END_CHECK_INTERVAL_S = 3, 1.0
"""A log end below what was emitted may be that of a new leader that lags behind for a moment."""


class DataLoss(AcktreeError):
    """Records that are not done can no longer be read."""


def check_offsets(batch: PlannedBatch) -> None:
    """Refuse to emit records under root ids that cannot hold their offsets.

    Raises:
        OffsetTooLarge: there is such a record.
    """
    ends = [(r.topic, r.partition, r.end) for r in (*batch.ranges, *batch.again)]
    ends += [(r.topic, r.partition, max(r.offsets, default=0) + 1) for r in batch.replays]
    for topic, partition, end in ends:
        if end - 1 > MAX_OFFSET:
            raise OffsetTooLarge(
                f"{topic}/{partition} has reached offset {end - 1}, but a root id holds offsets up to "
                f"{MAX_OFFSET} (40 bits): an acker could not tell its records from older ones. Let the "
                "producers write to a new topic, name it in the topology, and process the rest of this "
                "partition with complete=batch, which needs no root ids"
            )


class OffsetOutOfRange(AcktreeError):
    """A planned offset is no longer in the topic."""


def check_starts(topics: TopicEnds, options: SpoutOptions, next_offsets: Mapping[int, int]) -> None:
    """Refuse to continue where the first offset of a log is above the next one to read, by slot.

    With failOnDataLoss=false the task that reads there counts what is gone as done.

    Raises:
        DataLoss: there is such a partition, and failOnDataLoss is true.
    """
    if not options.fail_on_data_loss:
        return
    known = [source for source in topics.partitions if source.slot in next_offsets]
    starts = topics.log_starts(known)
    for slot, topic, partition, _ in known:
        if starts.get(slot, 0) > next_offsets[slot]:
            raise DataLoss(
                f"{topic}/{partition} begins at offset {starts[slot]}, but group {options.group} is at "
                f"{next_offsets[slot]}: the records between were removed, for example by retention, before "
                "they were read. To count them as done, start with failOnDataLoss=false; to continue "
                "elsewhere, set the group's offset with kafka-consumer-groups and start with allowSkip=true"
            )


def is_removed(topics: TopicEnds, options: SpoutOptions, source: SourceSlot, offset: int) -> bool:
    """Return whether a missing dead letter was removed at the start of the log, not by compaction.

    Raises:
        DataLoss: it was, so it cannot become a dead letter, and failOnDataLoss is true.
        BrokerUnreachable: its partition has no leader.
    """
    name = f"{source.topic}/{source.partition}/{offset}"
    start = topics.whole(topics.log_starts([source]), [source])[source.slot]
    if start <= offset:
        return False
    if options.fail_on_data_loss:
        raise DataLoss(
            f"record {name} is out of attempts, but the topic begins at offset {start}: it was removed, for "
            f"example by retention, and cannot become a dead letter of group {options.group}. To count it "
            "as done without one, start with failOnDataLoss=false"
        )
    log.warning("%s is out of attempts and lost: it was removed", name, extra={"action": "records_lost"})
    return True


def log_lost(place: tuple[str, int], count: int, first: int, last: int, before: str) -> None:
    """Log that ``count`` of the offsets from first to last are lost; ``before`` names what they missed."""
    text = (
        "%s/%d: %d offset(s) from %d to %d are lost and counted as done: removed, for example by retention, "
        "before they were %s"
    )
    log.warning(text, *place, count, first, last, before, extra={"action": "records_lost"})


def check_fetched(options: SpoutOptions, place: tuple[str, int], end: int, position: int) -> None:
    """Refuse to continue where a log has ended in front of records that were fetched; else log it.

    Raises:
        DataLoss: failOnDataLoss is true.
    """
    name = f"{place[0]}/{place[1]}"
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{name} ended at offset {end}, but records up to {position - 1} had been read: the log has lost "
            "its end, and other records may stand there now. To continue with what the log holds now, start "
            "with failOnDataLoss=false; to start elsewhere, set the group's offset with kafka-consumer-groups"
        )
    text = "%s ended at offset %d, below %d: what is not done is read again, as the log is now"
    log.warning(text, name, end, position, extra={"action": "log_end_fell"})


def log_damaged(place: tuple[str, int], start: int, end: int) -> None:
    """Log that nobody can read the offsets [start, end)."""
    text = "%s/%d: offsets %d to %d are damaged in the log and cannot be read"
    log.error(text, *place, start, end - 1, extra={"action": "invalid_record"})


def damaged_loss(place: tuple[str, int], start: int, end: int) -> DataLoss:
    """Return the error that ends a driver at damaged records."""
    return DataLoss(
        f"{place[0]}/{place[1]}: offsets {start} to {end - 1} are damaged in the log and cannot be read, and "
        "not done. To skip them and count them as lost, start with "
        "failOnDataLoss=false; to continue elsewhere, set the group's offset with kafka-consumer-groups and "
        "start with allowSkip=true"
    )


def check_leaders(
    topics: TopicEnds,
    options: SpoutOptions,
    next_offsets: Mapping[int, int],
    epochs: Mapping[int, LogEpoch],
) -> dict[int, int]:
    """Return by slot where logs that were read have ended before a new leader wrote other records there.

    ``epochs``: whose logs were read, up to the next offsets. Where the logs end now says nothing of it.
    What nobody can find out now leaves ``topics.epochs``, and is looked at again by who asks for ends next.

    Raises:
        DataLoss: one ended before a record that was read, and failOnDataLoss is true.
    """
    newer = {
        slot: each._replace(end=max(each.end, next_offsets.get(slot, 0)))
        for slot, each in with_newer_leader(topics, epochs).items()
    }
    answers, fallen = topics.fallen_to(newer), dict[int, int]()
    for source in topics.partitions:
        slot = source.slot
        if slot in newer and slot not in answers:
            del topics.epochs[slot]
        end = answers.get(slot)
        if end is not None and end < next_offsets.get(slot, 0):
            if end < epochs[slot].end:
                check_fetched(options, (source.topic, source.partition), end, next_offsets[slot])
            fallen[slot] = end
    return fallen


def with_newer_leader(topics: TopicEnds, epochs: Mapping[int, LogEpoch]) -> dict[int, LogEpoch]:
    """Return those epochs after which a partition has another leader, as far as that is known."""
    return {
        slot: read
        for slot, read in epochs.items()
        if (found := topics.epochs.get(slot)) is not None and 0 <= read.epoch < found.epoch
    }


def check_ends(topics: TopicEnds, options: SpoutOptions, next_offsets: Mapping[int, int]) -> dict[int, int]:
    """Return by slot the ends of partitions that end before the next offset to read.

    Raises:
        DataLoss: there is one, and failOnDataLoss is true.
    """
    for _ in range(END_CHECKS):
        ends = topics.log_ends()
        known = [s for s in topics.partitions if s.slot in ends and s.slot in next_offsets]
        beyond = [s for s in known if next_offsets[s.slot] > ends[s.slot]]
        if not beyond:
            return {}
        world.sleep(END_CHECK_INTERVAL_S)
    if options.fail_on_data_loss:
        topic, partition, slot = beyond[0].topic, beyond[0].partition, beyond[0].slot
        raise DataLoss(
            f"{topic}/{partition} ends at offset {ends[slot]}, but group {options.group} is at "
            f"{next_offsets[slot]}: records were truncated, or the offset was set by hand; records "
            "written below it would be skipped. To continue at the end, start with failOnDataLoss=false; to "
            "start elsewhere, set the group's offset with kafka-consumer-groups"
        )
    for source in beyond:
        log.warning(
            "%s/%d ends at offset %d, below %d: reading continues at the end",
            *(source.topic, source.partition, ends[source.slot], next_offsets[source.slot]),
            extra={"action": "log_end_fell"},
        )
    return {source.slot: ends[source.slot] for source in beyond}


def next_available(consumer: Consumer, place: TopicPartition, end: int, options: SpoutOptions) -> int:
    """Return where a task that found nothing at a place below the planned ``end`` continues.

    That is the place itself if the log has records there, else the one after those that are gone. What the
    group's offset has passed is done, or an operator has skipped it: Spark runs a logged batch again.

    Raises:
        OffsetOutOfRange: some are lost, and failOnDataLoss is true.
    """
    position = place.offset
    for _ in range(END_CHECKS):
        low, high = ask_bounds(consumer, place)
        if low <= position < high:
            return position
        if position < low:
            break
        world.sleep(END_CHECK_INTERVAL_S)
    following = min(low, end) if position < low else end
    if position < low and _is_passed(consumer, place, following):
        return following
    name = f"{place.topic}/{place.partition}"
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"{name} no longer holds offsets {position} to {following - 1}, which are not done; it holds "
            f"{low} to {high - 1}. The lost records were removed by retention, or truncated, or their topic "
            "was recreated. To count them as done, start with failOnDataLoss=false; to continue elsewhere, "
            f"set the offset of group {options.group} with kafka-consumer-groups"
        )
    lost = (name, position, following - 1)
    log.warning("%s: offsets %d to %d are lost and counted as done", *lost, extra={"action": "records_lost"})
    return following


def _is_passed(consumer: Consumer, place: TopicPartition, offset: int) -> bool:
    """Return whether the group has committed that all below an offset is done."""
    (committed,) = consumer.committed(
        [TopicPartition(place.topic, place.partition)], timeout=BROKER_TIMEOUT_S
    )
    return committed.error is None and committed.offset >= offset
