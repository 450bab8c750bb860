"""Where the simulated Kafka is known to differ from a real one, and why."""

from collections.abc import Callable
from dataclasses import dataclass

from conformance.results import Result
from conformance.script import Operation


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """A difference that a comparison leaves out."""

    what: str
    why: str
    normalise: Callable[[Operation, Result], Result]


def _unwritten(operation: Operation, result: Result) -> Result:
    """Give the reports of a fenced producer one error."""
    if "'fatal'" not in repr(result):
        return result
    return _replaced(
        result,
        {"INVALID_PRODUCER_EPOCH", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "UNKNOWN_TOPIC_OR_PART"},
        "not written",
    )


def _missing(operation: Operation, result: Result) -> Result:
    """Give watermarks of a partition that does not exist one error."""
    if operation[0] != "watermarks":
        return result
    return _replaced(result, {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"}, "missing")


def _not_assigned(operation: Operation, result: Result) -> Result:
    """Give a seek in a partition that is not assigned one error."""
    return (
        _replaced(result, {"_STATE", "_UNKNOWN_PARTITION"}, "not assigned")
        if operation[0] == "seek"
        else result
    )


def _one_rebalance(operation: Operation, result: Result) -> Result:
    """Take out a rebalance of new partitions that only repeats the one before it."""
    return _without_repeats(result) if operation[0] == "grow_topic" else result


def _without_repeats(result: Result) -> Result:
    if not isinstance(result, list):
        return result
    kept: list[Result] = []
    for each in map(_without_repeats, result):
        kept.append(each)
        if kept[-2:] == kept[-4:-2] == [["revoke", True], ["assign", True]]:
            del kept[-2:]
    return kept


def _replaced(result: Result, names: set[str], name: str) -> Result:
    if isinstance(result, dict):
        return {key: _replaced(value, names, name) for key, value in result.items()}
    if isinstance(result, list):
        return [_replaced(value, names, name) for value in result]
    return name if isinstance(result, str) and result in names else result


KNOWN: tuple[KnownDifference, ...] = (
    KnownDifference(
        "which error get_watermark_offsets raises for a partition that does not exist",
        "it depends on whether the client still believes in a topic that was deleted",
        _missing,
    ),
    KnownDifference(
        "which error the records have that a fenced producer did not write",
        "librdkafka sends batches and asks to add partitions to the transaction at the same time; "
        "what is refused first decides",
        _unwritten,
    ),
    KnownDifference(
        "which error a seek gets in a partition that is not assigned",
        "librdkafka knows partitions or not, by what any earlier call has asked the broker for",
        _not_assigned,
    ),
    KnownDifference(
        "how many rebalances new partitions cause",
        "each member of a classic group joins again when it sees them; on a slow machine one is over before "
        "another member sees them, which begins the next",
        _one_rebalance,
    ),
)


AVOIDED: tuple[tuple[str, str], ...] = (
    (
        "errors of partitions that do not exist, in a consumer that has them assigned",
        "librdkafka reports them when it refreshes its metadata, or never; the simulated consumer at once",
    ),
    (
        "producing to a topic that was deleted, or that a producer already knows to be missing",
        "librdkafka says _UNKNOWN_TOPIC, UNKNOWN_TOPIC_OR_PART or _UNKNOWN_PARTITION, raised or in a report, "
        "by what its metadata says at that moment; scripts produce once to a topic that never was, and soon",
    ),
    (
        "producing to a topic that was created again, by a producer that wrote to the one before",
        "the broker may refuse its sequence numbers, and OUT_OF_ORDER_SEQUENCE_NUMBER is fatal then; "
        "the simulated broker accepts them",
    ),
    (
        "new partitions, before a producer or consumer has asked for the topic",
        "librdkafka notices them by its refresh interval; scripts ask with list_topics first",
    ),
    (
        "a first record for a partition in a transaction that ends before it is flushed",
        "librdkafka adds the partition to the transaction after 5 ms: an abort writes a marker or not",
    ),
    (
        "producing right after purge() or abort_transaction()",
        "librdkafka goes on purging when the call has returned, and may drop the new records, too; "
        "confluent-kafka's purge(blocking=True) asks for just that, as it passes the flag inverted",
    ),
    (
        "settings of a topic that decide what the broker accepts, changed while it is written to",
        "a broker applies them some time after it shows them",
    ),
    (
        "cached watermarks of a read_committed consumer",
        "they say where the log ended at the last fetch, which may be later than the end it was told of",
    ),
    (
        "the position of a partition that is no longer assigned",
        "librdkafka forgets it in the background",
    ),
    (
        "a seek to OFFSET_STORED",
        "librdkafka stops reading if nothing is committed; the simulated consumer refuses the call",
    ),
    (
        "a seek out of range with auto.offset.reset=error, and any seek after that error",
        "a seek that comes before the error fails later; the simulated consumer knows at once",
    ),
    (
        "a pause of a partition that a consumer has not read from yet",
        "librdkafka ignores or obeys it, by whether it has got the topic's metadata meanwhile",
    ),
    (
        "a paused partition that starts at the end or beyond it, or where the group has committed",
        "librdkafka looks that up in the background, and nothing says when",
    ),
    (
        "an assignment from the beginning right after records were deleted there",
        "librdkafka begins where its last fetch saw the log begin; scripts wait for the next fetch",
    ),
    (
        "deleting records of an open transaction, while a read_committed consumer waits for its end",
        "the real consumer reports no end until the transaction has ended; the simulated one the new start",
    ),
    (
        "a start before the first record that is left, before the log grows",
        "librdkafka finds out in the background, and goes to what is the end then; scripts read at once",
    ),
    (
        "a partition that does not exist yet, in a consumer with auto.offset.reset=error",
        "librdkafka may have given up its start before the partition is there; the simulated consumer waits",
    ),
    (
        "when a consumer finds a partition that was missing when it was assigned",
        "by its refresh interval; scripts let it read at once when the partition is there",
    ),
    (
        "callbacks on the way to an assignment with KIP-848, and which member gets what",
        "both depend on member ids that are drawn; how much the members have in the end is compared",
    ),
    (
        "topics that are deleted while somebody reads them",
        "consumers learn of it by their refresh interval",
    ),
    (
        "texts of errors, times, and how often the end of a partition is reported",
        "they differ from run to run",
    ),
)
"""What scripts leave out, or do only once it cannot differ any more, and why."""


def without_known_differences(operation: Operation, result: Result) -> Result:
    """Return a result without what is known to differ."""
    for known in KNOWN:
        result = known.normalise(operation, result)
    return result
