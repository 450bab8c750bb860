"""A worker that meets tuples of versions that were published a moment ago."""

import pytest

from acktree.core.topology.registry import Registry
from acktree.wire.header import Anchor, encode_header
from producers.cluster import Sink, WorkerCluster, until


@pytest.mark.simulated
def test_the_tuples_of_two_versions_published_within_a_second_are_executed(cluster: WorkerCluster):
    cluster.apply(only=(["a"], []))
    worker = cluster.start(Sink())
    for number in range(4):
        cluster.max_pending += 1
        cluster.apply()
        cluster.emit([number])
    until(lambda: worker.executed + worker.invalid == 4 or worker.error, "all tuples")
    worker.stop()
    assert worker.invalid == 0
    assert not cluster.open_roots()


@pytest.mark.simulated
def test_records_of_many_unknown_versions_cost_one_registry_lookup_per_turn(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    looks, catch_up = [], Registry.catch_up

    def count_and_catch_up(registry: Registry) -> None:
        looks.append(registry)
        catch_up(registry)

    cluster.apply(only=(["a"], []))
    for version in range(1_000, 1_300):
        cluster.write(b"foreign", encode_header(version, [Anchor(version, version, 1)]))
    cluster.flush()
    monkeypatch.setattr(Registry, "catch_up", count_and_catch_up)
    worker = cluster.start(Sink())
    until(lambda: worker.invalid == 300 or worker.error, "all records")
    worker.stop()
    assert 1 <= len(looks) < 30
