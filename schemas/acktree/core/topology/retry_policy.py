"""Decides when a failed record is emitted again, and when it is given up. Pure: jitter is an argument.

Invariant: a delay is at least that of the doubling, and at most a tenth above the longest.
"""

import math
from dataclasses import dataclass

from acktree.core.topology.registry import Published

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

    def delay_s(self, failures: int, jitter: float) -> float:
        """Return the back-off after this many failures; jitter in [0, 1) adds up to a tenth.

        After a failure that uses up no attempt, those are counted that used up none as well.

        >>> [RetryPolicy(1.0, 5.0, 10).delay_s(failures, 0.0) for failures in (0, 1, 2, 3, 4)]
        [1.0, 1.0, 2.0, 4.0, 5.0]
        """
        doubled = self.initial_s * 2.0 ** min(max(failures - 1, 0), MAX_BACKOFF_DOUBLINGS)
        return min(self.max_s, doubled) * (1 + jitter / 10)

    def limited_s(self, delay_s: float) -> float:
        """Return a delay, no matter who chose it, within the limits."""
        return min(max(delay_s, 0.0), self.max_after_s)

    def with_one_left(self, attempts: int) -> int:
        """Return the attempts of what was to be given up, and shall have one more.

        >>> [RetryPolicy(1.0, 5.0, 3).with_one_left(attempts) for attempts in (0, 1, 3, 7)]
        [0, 0, 2, 2]
        """
        return max(0, min(attempts, self.max_attempts) - 1)


def retry_policy(published: Published, spout: str) -> RetryPolicy:
    """Return the retry policy of a spout in a version; a delay is at most half of the control retention."""
    table = published.spouts[spout]
    longest_s = published.control_retention_s / 2
    return RetryPolicy(table.retry_initial_s, table.retry_max_s, table.max_attempts, longest_s)
