"""Where the simulated Kafka is known to differ from a real one, and why."""

from collections.abc import Callable
from dataclasses import dataclass

from acktree.testing.conformance.results import Result
from acktree.testing.conformance.script import Operation


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
)


def without_known_differences(operation: Operation, result: Result) -> Result:
    """Return a result without what is known to differ."""
    for known in KNOWN:
        result = known.normalise(operation, result)
    return result
