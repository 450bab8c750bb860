"""A topology as users run it: of a thousand partitions, and with a driver that was away for a day."""

from acktree.core.topology.file import Topology, parse_topology
from acktree.producers import BasicBolt
from acktree.testing import TopologyTester

TEXT = """
name = "t"
[spouts.lines]
topics = ["lines"]
emits = ["words"]
[bolts.keep]
reads = ["words"]
"""
PARTITIONS = 1_000
HOUR_S = 3600.0


class KeepMany(BasicBolt):
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def execute(self, tup, emit):
        self.values.append(tup.value)


def topology_of(keep: KeepMany, partitions: int, topology: Topology | None = None) -> TopologyTester:
    stages = {"lines": lambda row: [row.value]}
    bolts = {"keep": lambda: keep}
    table = topology or parse_topology(TEXT)
    return TopologyTester(table, bolts=bolts, stages=stages, partitions=partitions, ackers=1)


def test_a_spout_of_a_thousand_partitions_emits_commits_and_restarts():
    keep = KeepMany()
    with topology_of(keep, PARTITIONS) as topology:
        for partition in range(PARTITIONS):
            topology.send("lines", str(partition), partition=partition)
        topology.run_until_done()
        topology.run_until(lambda: topology.committed("lines", PARTITIONS - 1) == 1, what="the commit")
        assert all(topology.committed("lines", partition) == 1 for partition in range(PARTITIONS))
        topology.kill("lines")
        for partition in range(0, PARTITIONS, 10):
            topology.send("lines", f"{partition} again", partition=partition)
        topology.run_until_done()
        assert len(topology.acked("lines")) == PARTITIONS + PARTITIONS // 10
        assert not topology.replays("lines")
    assert len(set(keep.values)) == len(keep.values) == PARTITIONS + PARTITIONS // 10


def test_a_driver_that_was_away_for_a_day_loses_nothing():
    """What came and what finished meanwhile: results are kept for six hours, so it emits some again."""
    keep = KeepMany()
    with topology_of(keep, 2) as topology:
        for number in range(10):
            topology.send("lines", f"before {number}")
        topology.run_until_done()
        topology.run_for(60.0)
        topology.kill("keep", restart_after_s=30.0)
        for number in range(10):
            topology.send("lines", f"in flight {number}")
        topology.run_until(lambda: len(topology.records("words")) == 20, what="the emission")
        topology.kill("lines", restart_after_s=24 * HOUR_S)
        topology.run_until(lambda: len(keep.values) == 20, what="the bolt")
        topology.run_for(600.0)
        for name in ("keep", "acker"):  # nothing is there for them to do: this spares the test their turns
            topology.kill(name, restart_after_s=23 * HOUR_S)
        for number in range(10):
            topology.send("lines", f"meanwhile {number}")
        topology.run_for(8 * HOUR_S)
        for name in ("t.ack", "t.ack-init", "t.spout-0"):
            log = topology.cluster.log(name, 0)
            log.delete_older(topology.cluster.now_ms() - int(6 * HOUR_S * 1000))
            assert not log.records, name
        topology.run_until_done(limit_s=24 * HOUR_S)
        assert len(topology.acked("lines")) == 30
        assert len(topology.replays("lines")) <= 10, "only what it had in flight is emitted again"
        assert not topology.dead_letters()
    assert len(set(keep.values)) == 30
    assert sum(value.startswith(b"before") for value in keep.values) == 10
