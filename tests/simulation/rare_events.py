"""What a set of seeds has to reach: a schedule that never happened was not tested, however green the set is.

Invariant: a set of SET_SEEDS or more in which one of these is missing is void.
"""

from collections.abc import Mapping

from simulation.faults import KINDS

SET_SEEDS = 400
"""From so many seeds on, each of them happens."""
RARE = (
    "ack before init",
    "acked out of order",
    "acker count reduced",
    "block acked",
    "block failed",
    "begun without the last batch",
    "bolt rewound",
    "bolt slower than its backlog",
    "breaker open",
    "breaker closed again",
    "dead letter",
    "delayed by a stage",
    "done above the frontier",
    "driver failed in its start",
    "driver hung in a commit",
    "driver killed in a commit",
    "emitted again after its delay",
    "executed in Spark",
    "failed: failed",
    "failed: timed_out",
    "input of a task cut off",
    "join",
    "message given up",
    "message rejected",
    "never acked",
    "offsets of a bolt forgotten",
    "offsets of the spout forgotten",
    "older checkpoint",
    "record rejected",
    "rejected by a stage",
    "running source rewound",
    "second init",
    "skip refused",
    "source rewound",
    "source skipped",
    "state damaged",
    "task in Python hung in a commit",
    "task in Python killed in a commit",
    "task killed between calls",
    "timeout in calm",
    "timeout reset",
    "tuple damaged",
    "tuples truncated",
    "transaction aborted in a revocation",
    "transaction of a driver timed out",
    "transaction of a task in Python timed out",
    "unanchored",
    "untracked",
)


def missing(counters: Mapping[str, int]) -> list[str]:
    """Return which rare things and which kinds of fault have not happened."""
    return [name for name in (*RARE, *(f"fault: {kind}" for kind in KINDS)) if not counters.get(name)]
