"""A transaction that holds back a partition is named with what it hides; shorter ones are not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from acktree.console.view.cluster import Cluster
from acktree.console.view.open_transactions import MIN_AGE_S, OpenTransaction, OpenTransactions
from acktree.core import world
from acktree.core.kafka.clients import make_producer
from console.dead_letter_topology import WAIT_S, DeadLetterTopology

pytestmark = pytest.mark.simulated


@contextmanager
def transaction(topology: DeadLetterTopology, age_s: float) -> Iterator[Callable[[], None]]:
    """Open a transaction in the source topic, whose record has a time, and abort it at the end."""
    settings = {"bootstrap.servers": topology.bootstrap, "transactional.id": f"{topology.name}-stranger"}
    producer = make_producer(settings)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topology.source, b"hidden", timestamp=world.wall_ms() - int(1000 * age_s), partition=0)
    assert producer.flush(WAIT_S) == 0
    yield lambda: producer.abort_transaction(WAIT_S)


def found(topology: DeadLetterTopology) -> list[OpenTransaction]:
    cluster = Cluster(topology.bootstrap, topology.name, {})
    try:
        return OpenTransactions().find_at_once(cluster, cluster.ends(cluster.partitions([topology.source])))
    finally:
        cluster.close()


def test_an_open_transaction_is_named_until_it_ends(topology: DeadLetterTopology):
    before_ms = world.wall_ms()
    with transaction(topology, 2 * MIN_AGE_S) as abort:
        (named,) = found(topology)
        assert (named.place, named.offset) == ((topology.source, 0), 10)
        assert abs(before_ms - 2000 * MIN_AGE_S - named.since_ms) < 1000 * MIN_AGE_S
        text = named.text(world.wall_ms())
        assert text.startswith(
            f"an open transaction has hidden what {topology.source}/0 holds from offset 10"
        )
        abort()
    assert found(topology) == []


@pytest.mark.parametrize("age_s", [0, -3600], ids=["now", "ahead"])
def test_a_young_transaction_is_not_named_whatever_its_time(topology: DeadLetterTopology, age_s: float):
    with transaction(topology, age_s) as abort:
        assert found(topology) == []
        abort()
