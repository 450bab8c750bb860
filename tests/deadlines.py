"""How long tests wait: seconds of a quiet machine of normal speed, stretched by how slow this one is.

A deadline only ends a test that hangs, so it may be long; no test asserts that something happens within a
time, unless that time is virtual. ``tests/run.py`` measures the machine before the tests begin.
"""

import os

SLOWNESS = "ACKTREE_TEST_SLOWNESS"
"""The variable with how many times longer than on a quiet machine of normal speed work takes."""
PATIENCE = 4.0
"""What else every deadline is multiplied by: tests run beside each other, and others may begin to work."""

MAX_SLOWNESS = 8.0


def stretched(seconds: float) -> float:
    """Return how long to wait here for what a quiet machine does within so many seconds."""
    return seconds * PATIENCE * min(MAX_SLOWNESS, max(1.0, float(os.environ.get(SLOWNESS, "1"))))


ANSWER_S = stretched(30)
"""How long an answer of a broker, or of a process of the test, may take."""
