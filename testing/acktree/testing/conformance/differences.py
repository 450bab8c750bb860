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


KNOWN: tuple[KnownDifference, ...] = ()


def without_known_differences(operation: Operation, result: Result) -> Result:
    """Return a result without what is known to differ."""
    for known in KNOWN:
        result = known.normalise(operation, result)
    return result
