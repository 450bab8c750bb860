"""Corrects the value of a dead letter: writes a new record to the source topic, and closes the dead letter.

Invariant: the new record and the closing of the dead letter are one transaction, and two corrections of one
dead letter at the same time are serialized by a transactional producer that reads what is closed after
fencing the other. So a dead letter is replaced at most once, and after any crash it is either open or
replaced, nothing between.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from acktree.console.view.cluster import Cluster
from acktree.console.view.records.dead_letters import (
    DeadLetter,
    dead_letter_of,
    find_closing,
    spouts_by_topic,
)
from acktree.console.view.records.tree_reader import headers_of
from acktree.core.errors import BrokerUnreachable, NotAuthorized
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    make_producer,
    retry_until_ready,
    wait_until_delivered,
)
from acktree.core.kafka.errors import as_clear_error, clear_errors
from acktree.core.kafka.settings import ANY_SIZE, Settings, producer_settings
from acktree.wire.dead_letter import CLOSES, CORRECTED_AS, CORRECTS, source_headers
from acktree.wire.errors import AcktreeError
from acktree.wire.header import HEADER

SHOWN_BYTES = 500


class NotCorrectable(AcktreeError):
    """A dead letter is closed, names no source record that a spout reads, or its value is unchanged."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A new value for the source record of a dead letter; ``record`` is the record with its content."""

    letter: DeadLetter
    record: Message
    value: bytes

    @property
    def place(self) -> str:
        """The source record that is replaced."""
        return self.letter.source

    def lines(self) -> list[str]:
        """Return in sentences what will be done."""
        shown = self.value[:SHOWN_BYTES].decode("utf-8", "replace")
        more = " …" if len(self.value) > SHOWN_BYTES else ""
        return [
            f"dead letter {self.letter.name}: {self.place} will be replaced by a new record of "
            f"{self.letter.topic}/{self.letter.source_partition}, and the dead letter closed",
            f"value, {len(self.value):,} bytes instead of {self.letter.value_bytes:,}: {shown}{more}",
        ]


def read_open_dead_letter(cluster: Cluster, partition: int, offset: int) -> tuple[DeadLetter, Message]:
    """Return a dead letter that can be corrected, and the record that holds the content of its source record.

    Raises:
        NotCorrectable: it is closed, or its content is nowhere.
    """
    topic = cluster.topology.dead_letter_topic
    record = cluster.record(topic, partition, offset)
    if record is None:
        raise NotCorrectable(f"{topic}/{partition} holds no record at offset {offset}")
    letter = dead_letter_of(record, spouts_by_topic(cluster.topology))
    if not letter.topic:
        raise NotCorrectable(f"dead letter {letter.name} does not name its source record")
    if not letter.spout:
        raise NotCorrectable(f"no spout of topology {cluster.topology.name} reads {letter.topic}")
    if (letter.topic, letter.source_partition) not in cluster.partitions([letter.topic]):
        raise NotCorrectable(f"topic {letter.topic} has no partition {letter.source_partition}")
    if closed := find_closing(cluster, letter):
        raise NotCorrectable(f"dead letter {letter.name} is closed: it was corrected as {closed}")
    if not letter.left_out:
        return letter, record
    if (source := cluster.record(letter.topic, letter.source_partition, letter.source_offset)) is None:
        raise NotCorrectable(
            f"dead letter {letter.name} holds no content, and its source record {letter.source} is gone"
        )
    return replace(letter, value_bytes=len(source.value() or b"")), source


def is_source_gone(cluster: Cluster, letter: DeadLetter) -> bool:
    """Return whether the source record is no longer in its topic, so that no replay can emit it again."""
    try:
        return cluster.record(letter.topic, letter.source_partition, letter.source_offset) is None
    except NotAuthorized:
        return False


def correct(letter: DeadLetter, record: Message, value: bytes, is_gone: bool = False) -> Correction:
    """Return the correction of a dead letter; ``is_gone``: its source record is no longer in its topic.

    Raises:
        NotCorrectable: the value is the old one, and the source record is there.
    """
    if value == record.value() and not is_gone:
        raise NotCorrectable("the value is unchanged; to emit the record again, replay it without --edit")
    return Correction(letter, record, value)


def carry_out(cluster: Cluster, correction: Correction, user: Settings) -> str:
    """Write the new record and close the dead letter; return the record's TOPIC/PARTITION/OFFSET.

    Raises:
        NotCorrectable: somebody else has closed it meanwhile, or its topic was recreated.
        BrokerUnreachable: it is not known whether it was done; a second run finds out, and does it once.
        BrokerRefused: nothing was done.
    """
    topology, letter = cluster.topology, correction.letter
    name = f"{topology.dead_letter_topic}.editor"
    ours = {"transactional_id": name, "delivery_report_only_error": False}
    producer = make_producer(producer_settings(cluster.bootstrap, {**user, **ANY_SIZE}, **ours))
    with clear_errors(cluster.bootstrap, f"transactional id {name}"):
        retry_until_ready(lambda: producer.init_transactions(BROKER_TIMEOUT_S))
        again, record = read_open_dead_letter(cluster, letter.partition, letter.offset)
        if again != letter or record.value() != correction.record.value():
            raise NotCorrectable(f"dead letter {letter.name} is no longer the same: its topic was recreated")
        producer.begin_transaction()
        try:
            place = _write(cluster, producer, correction)
        except BaseException:
            with suppress(KafkaException):  # what failed is said; the next editor's start ends what is open
                producer.abort_transaction(BROKER_TIMEOUT_S)
            raise
        producer.commit_transaction(BROKER_TIMEOUT_S)
    return place


def _write(cluster: Cluster, producer: Producer, correction: Correction) -> str:
    letter, record = correction.letter, correction.record
    of_source = headers_of(record) if letter.left_out else source_headers(headers_of(record))
    kept = [each for each in of_source if each[0] not in (HEADER, CORRECTS)]
    place = {"topic": letter.topic, "partition": letter.source_partition}
    headers = [*kept, (CORRECTS, letter.source.encode())]
    written = _send(cluster, producer, **place, key=record.key(), value=correction.value, headers=headers)
    new = f"{letter.topic}/{letter.source_partition}/{written.offset()}"
    closing = [(CLOSES, letter.name.encode()), (CORRECTED_AS, new.encode())]
    topic = cluster.topology.dead_letter_topic
    _send(cluster, producer, topic=topic, partition=letter.partition, headers=closing)
    return new


def _send(cluster: Cluster, producer: Producer, **record: Any) -> Message:
    """Write one record and wait for it."""
    results: list[tuple[KafkaError | None, Message]] = []
    try:
        producer.produce(**record, on_delivery=lambda error, message: results.append((error, message)))
    except KafkaException as error:
        raise as_clear_error(error.args[0], cluster.bootstrap, f"topic {record['topic']}") from error
    wait_until_delivered(producer, BROKER_TIMEOUT_S)
    if not results:
        raise BrokerUnreachable(f"a record could not be written to {record['topic']} in time")
    refusal, message = results[0]
    if refusal is not None and refusal.code() == KafkaError._PURGE_QUEUE:
        producer.commit_transaction(BROKER_TIMEOUT_S)  # the transaction has failed, and this raises why
    if refusal is not None:
        raise as_clear_error(refusal, cluster.bootstrap, f"topic {record['topic']}")
    return message
