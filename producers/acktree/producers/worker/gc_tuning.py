"""Sets garbage collection for a process that is only a worker.

Tuples are freed by reference counting; looking for cycles among them costs about 0.5 CPU s per million
(python benchmarks/worker_rates.py). A library must not decide this for its host, so only the command line
calls it.
"""

import gc

YOUNG_OBJECTS = 100_000


def collect_rarely() -> None:
    """Exclude everything loaded so far from collections, and collect once per YOUNG_OBJECTS new objects."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 1_000)
