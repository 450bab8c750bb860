"""When what failed is emitted again, and after how many attempts it is given up. Pure: jitter is an argument.

Invariant: a delay is at least what the doubling says, and at most a tenth above the longest.
"""

import math
from dataclasses import dataclass

from acktree.schemas.registry import Published

MAX_BACKOFF_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Back-off and maximum number of attempts of one spout; times in seconds.

    ``max_after_s`` is the longest delay that a bolt may ask for.
    """

    initial_s: float
    max_s: float
    max_attempts: int
    max_after_s: float = math.inf

    def delay_s(self, attempts: int, jitter: float) -> float:
        """Return the wait after the given number of failed attempts; jitter in [0, 1) adds up to a tenth."""
        doubled = self.initial_s * 2.0 ** min(attempts - 1, MAX_BACKOFF_DOUBLINGS)
        return min(self.max_s, doubled) * (1 + jitter / 10)


def retry_policy(published: Published, spout: str) -> RetryPolicy:
    """Return the retry policy of a spout in a version; a delay is at most half of the control retention."""
    table = published.spouts[spout]
    longest_s = published.control_retention_s / 2
    return RetryPolicy(table.retry_initial_s, table.retry_max_s, table.max_attempts, longest_s)
