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
    return _replaced(result, {"INVALID_PRODUCER_EPOCH", "_PURGE_QUEUE", "_PURGE_INFLIGHT"}, "not written")


def _missing(_operation: Operation, result: Result) -> Result:
    return _replaced(result, {"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"}, "missing")


def _replaced(result: Result, names: set[str], name: str) -> Result:
    if isinstance(result, dict):
        return {key: _replaced(value, names, name) for key, value in result.items()}
    if isinstance(result, list):
        return [_replaced(value, names, name) for value in result]
    return name if isinstance(result, str) and result in names else result


KNOWN: tuple[KnownDifference, ...] = (
    KnownDifference(
        "which error the records have that a fenced producer did not write",
        "librdkafka sends batches and asks to add partitions to the transaction at the same time; "
        "what is refused first decides",
        _unwritten,
    ),
)


def without_known_differences(operation: Operation, result: Result) -> Result:
    """Return a result without what is known to differ."""
    for known in KNOWN:
        result = known.normalise(operation, result)
    return result
