"""Makes idle turns rare: in a simulation a loop that finds nothing to do costs as much as one that works.

Invariant: an arrival still ends a wait immediately, so no outcome changes; only idle seconds get cheaper.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

IDLE_TURN_S, BUSY_TURN_S = 1.0, 0.2
"""How long loops without work wait here, instead of 100 and 5 ms."""

ACKER_TURN_S = 0.9
"""For ackers: less than the step of log time that counts as a leap, after which timeouts are held back."""

_TURNS = {
    ("acktree.acker.service", "IDLE_WAIT_S"): ACKER_TURN_S,
    ("acktree.producers.worker.loop", "IDLE_WAIT_S"): IDLE_TURN_S,
    ("acktree.producers.worker.loop", "BUSY_WAIT_S"): BUSY_TURN_S,
    ("acktree.producers.spouts.spout_loop", "IDLE_WAIT_S"): BUSY_TURN_S,
    ("acktree.producers.spouts.spout_loop", "BUSY_WAIT_S"): BUSY_TURN_S,
    ("acktree.producers.spouts.driver.spout_driver", "IDLE_WAIT_S"): BUSY_TURN_S,
    ("acktree.spark.source", "IDLE_WAIT_S"): BUSY_TURN_S,
    ("acktree.testing.spark.spark_stub", "POLLING_DELAY_S"): BUSY_TURN_S,
}


@contextmanager
def fewer_idle_turns() -> Iterator[None]:
    """Let loops wait longer when nothing happens, until the block ends."""
    found = [
        (sys.modules[module], name, turn_s)
        for (module, name), turn_s in _TURNS.items()
        if module in sys.modules
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in found]
    for module, name, turn_s in found:
        setattr(module, name, turn_s)
    try:
        yield
    finally:
        for module, name, turn_s in before:
            setattr(module, name, turn_s)
