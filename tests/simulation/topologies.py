"""The random topologies of a search.

Invariant: they follow from the draws alone.
"""

import random
from typing import Any

from acktree.core.topology.file import BoltTable, SpoutTable, Topology

NAME, SOURCE = "t", "source"
BLOCKS = 0.3
"""How often a Spark spout tracks by block."""


def draw_topology(draw: random.Random) -> Topology:
    """Return a random topology: a chain of bolts, some read by two."""
    length = draw.randint(1, 3)
    topics = [f"topic{index}" for index in range(length)]
    bolts = {}
    for index, topic in enumerate(topics):
        emits = (topics[index + 1],) if index + 1 < length else ()
        bolts[f"bolt{index}"] = BoltTable(reads=(topic,), emits=emits, exactly_once=draw.random() < 0.4)
    if draw.random() < 0.3:
        bolts["second"] = BoltTable(reads=(draw.choice(topics),), exactly_once=draw.random() < 0.3)
    if length > 1 and draw.random() < 0.2:
        bolts["join"] = BoltTable(reads=tuple(topics))
    settings: dict[str, Any] = {"tasks": draw.randint(1, 2), "max_pending": draw.choice([5, 1000])}
    if draw.random() < 0.5:
        settings |= {
            "topics": (SOURCE,),
            "max_attempts": draw.choice([3, 1000]),
            "retry_initial_s": draw.choice([0.1, 1.0]),
            "retry_max_s": draw.choice([1.0, 5.0]),
        }
    spout = SpoutTable.model_validate({"emits": (topics[0],), **settings})
    return Topology(
        name=NAME,
        ackers=draw.randint(1, 4),
        message_timeout_s=draw.choice([3.0, 3.0, 10.0, 30.0]),
        orphan_timeout_s=draw.choice([60.0, 300.0]),
        spouts={"s": spout},
        bolts=bolts,
    )


def with_blocks(topology: Topology, draw: random.Random) -> Topology:
    """Return the topology, in some seeds with a Spark spout that tracks by block."""
    table = topology.spouts["s"]
    if not table.topics or draw.random() >= BLOCKS:
        return topology
    changes = {"block": draw.choice([2, 3, 5])}  # no more than any max_pending
    return topology.model_copy(update={"spouts": {"s": table.model_copy(update=changes)}})


def with_breaker(topology: Topology, draw: random.Random) -> Topology:
    """Return the topology, in some seeds with a breaker, and with retries of a Python spout."""
    table = topology.spouts["s"]
    changes: dict[str, Any] = {}
    if not table.topics and draw.random() < 0.5:
        changes |= {"max_attempts": draw.choice([1, 3]), "retry_initial_s": 0.1, "retry_max_s": 1.0}
    if draw.random() < 0.4:
        changes["max_consecutive_failures"] = draw.choice([2, 5])
        changes["failure_window_s"] = draw.choice([1.0, 5.0])
    if draw.random() < 0.2:
        changes |= {"max_failure_ratio": draw.choice([0.2, 0.6]), "failure_min_results": 3}
    return topology.model_copy(update={"spouts": {"s": table.model_copy(update=changes)}})
