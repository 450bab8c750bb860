"""Whether a healed system has come to rest: every group of it has committed up to the ends of its logs.

Invariant: a committed offset before the last record that a reader may see means that something is not done.
"""

from collections.abc import Iterator

from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.groups import Group
from acktree.testing.kafka.broker.log import PartitionLog
from simulation.system import System
from simulation.topologies import NAME

AT_REST_S = 120.0
"""Within what it comes to rest when it is done, beside the time after which orphaned acks expire."""


def unfinished(system: System) -> str:
    """Return what keeps a system from being at rest, "" if nothing does."""
    cluster = system.cluster
    for topic in (f"{NAME}.ack-init", f"{NAME}.ack"):
        for log in cluster.topics[topic].partitions[: system.topology.ackers]:
            if reason := _left(cluster.groups.get(f"{NAME}.acker"), log):
                return f"the cut of an acker: {reason}"
    for bolt, log in _inputs(system, cluster):
        if reason := _left(cluster.groups.get(f"{NAME}.{bolt}"), log):
            return f"the frontier of {bolt}: {reason}"
    return ""


def _inputs(system: System, cluster: Cluster) -> Iterator[tuple[str, PartitionLog]]:
    for bolt, table in system.topology.bolts.items():
        for topic in table.reads:
            for log in cluster.topics[topic].partitions:
                yield bolt, log


def _left(group: Group | None, log: PartitionLog) -> str:
    last = log.last_committed
    committed = group.offsets.get((log.topic.name, log.number)) if group is not None else None
    reached = committed.offset if committed is not None else log.start_offset
    return (
        f"{log.topic.name}/{log.number} is at {reached}, its last record at {last}" if reached <= last else ""
    )
