"""The cycle collector of a process that is a worker and nothing else.

Tuples die by reference counting; looking for cycles among a batch of them costs about 0.5 CPU s per million
(acktree bench worker). A library must not decide this for its host, so only the command line calls it.
"""

import gc

YOUNG_OBJECTS = 100_000


def collect_rarely() -> None:
    """Leave what is loaded out of collections, and look for cycles once in YOUNG_OBJECTS new objects."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 1_000)
