"""Writes the records by which an operator controls processes, and returns the broker's answer to each.

Invariant: a record counts as written only by its delivery report; one without a report may exist or not.
"""

from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    make_producer,
    produce_when_room,
    wait_until_delivered,
)
from acktree.core.kafka.errors import as_clear_error, clear_errors
from acktree.core.kafka.settings import Settings, producer_settings
from acktree.wire.errors import AcktreeError


class OperatorRecord(NamedTuple):
    """A record for partition 0 of a topic."""

    topic: str
    value: bytes
    key: bytes | None = None


def write_records(
    bootstrap: str, records: Sequence[OperatorRecord], what: str, user: Settings
) -> list[int | AcktreeError]:
    """Write records, called ``what``; return for each its offset, or why it is not known to be written."""
    producer = make_producer({**producer_settings(bootstrap, user), "delivery.report.only.error": False})
    outcomes: dict[int, int | AcktreeError] = {}
    for index, record in enumerate(records):

        def on_delivery(error: KafkaError | None, message: Message, index: int = index) -> None:
            about = f"topic {records[index].topic}"
            outcomes[index] = as_clear_error(error, bootstrap, about) if error else message.offset() or 0

        try:
            with clear_errors(bootstrap, f"topic {record.topic}"):
                about = {"key": record.key, "partition": 0, "on_delivery": on_delivery}
                produce_when_room(producer, record.topic, record.value, **about)
        except AcktreeError as error:
            outcomes[index] = error
    stopped = _flush(producer, bootstrap, records)
    if stopped is not None:
        refused = [index for index, outcome in outcomes.items() if isinstance(outcome, AcktreeError)]
        outcomes |= dict.fromkeys(refused, stopped)
    written = sum(isinstance(outcome, int) for outcome in outcomes.values())
    count = f"{written} of {len(records)} {what} were written"
    rest = stopped or BrokerUnreachable(f"{count}, the rest were not confirmed")
    return [outcomes.get(index, rest) for index in range(len(records))]


def written_or_raised(outcomes: Sequence[int | AcktreeError]) -> list[int]:
    """Return the offsets of records that are all written; else raise why one is not, the clearest first."""
    refused = [outcome for outcome in outcomes if not isinstance(outcome, int)]
    if refused:
        raise min(refused, key=lambda error: isinstance(error, BrokerUnreachable))
    return [outcome for outcome in outcomes if isinstance(outcome, int)]


def _flush(producer: Producer, bootstrap: str, records: Sequence[OperatorRecord]) -> AcktreeError | None:
    """Wait until the broker has what was produced; return why the producer as a whole is refused."""
    topics = dict.fromkeys(record.topic for record in records)
    try:
        with clear_errors(bootstrap, f"topic {', '.join(topics)}"):
            wait_until_delivered(producer, BROKER_TIMEOUT_S)
    except AcktreeError as error:
        return error
    return None
