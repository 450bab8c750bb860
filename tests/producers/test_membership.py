"""Workers as members of their group, by the classic protocol and KIP-848: they come, go and lose nothing."""

from collections import Counter
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from acktree.core.kafka.clients import make_consumer
from acktree.producers import Bolt
from acktree.producers.kafka.membership import group_settings
from producers.cluster import Forward, RunningWorker, WorkerCluster, until

pytestmark = pytest.mark.simulated

PROTOCOLS = {"classic": {}, "kip-848": {"group.protocol": "consumer"}}
with_kip_848 = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)


class HoldOne(Bolt):
    """Holds b"1", passes on and acks the others."""

    def execute(self, tup, collector):
        if tup.value != b"1":
            collector.emit(tup.value, anchors=tup)
            collector.ack(tup)


def values(cluster: WorkerCluster) -> Counter[int]:
    return Counter(int(record.value()) for record in cluster.read(cluster.topic("b")))


@with_kip_848
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_a_worker_resumes_at_the_committed_offset_and_skips_what_is_done_above_it(
    cluster: WorkerCluster, protocol: dict[str, str], exactly_once: bool
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    first = cluster.start(HoldOne(), user=protocol)
    until(lambda: (cluster.committed("only") == {0: 1} and first.acked == 9) or first.error)
    first.stop()
    second = cluster.start(Forward(), user=protocol)
    until(lambda: cluster.committed("only") == {0: 10} or second.error)
    assert second.executed == 1
    second.stop()
    assert values(cluster) == Counter(range(10))
    assert not cluster.open_roots()


@pytest.mark.parametrize(
    ("protocol", "exactly_once"),
    [
        pytest.param(PROTOCOLS["classic"], False, id="classic, at least once", marks=pytest.mark.slow),
        pytest.param(PROTOCOLS["classic"], True, id="classic, exactly once", marks=pytest.mark.slow),
        pytest.param(PROTOCOLS["kip-848"], False, id="kip-848, at least once", marks=pytest.mark.slow),
        pytest.param(PROTOCOLS["kip-848"], True, id="kip-848, exactly once"),
    ],
)
def test_constant_rebalances_lose_no_record(
    cluster: WorkerCluster, protocol: dict[str, str], exactly_once: bool
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    stays, total = cluster.start(Forward(), user=protocol), 0

    def emit(partition: int) -> None:
        nonlocal total
        cluster.emit(range(total, total + 100), partition)
        total += 100

    def acked(*workers: RunningWorker) -> int:
        failed = [worker.error for worker in workers if worker.error]
        assert not failed, failed
        return sum(worker.acked for worker in workers)

    for _ in range(3):
        guest = cluster.start(Forward(), user=protocol)
        while not acked(guest):
            emit(0)
            emit(1)
        guest.stop()
        before = acked(stays)
        while acked(stays) == before:
            emit(0)
            emit(1)
    until(lambda: acked(stays) and cluster.committed("only") == cluster.ends(), "all committed")
    stays.stop()
    assert values(cluster) == Counter(range(total))
    assert not cluster.open_roots()


class Stale:
    """A member whose epoch is stale whenever it fetches the committed offsets."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._consumer = make_consumer(settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def committed(self, *given: Any, **named: Any) -> None:
        raise KafkaException(KafkaError(KafkaError.STALE_MEMBER_EPOCH))


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_a_worker_with_a_stale_member_epoch_resumes_at_the_committed_offset(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch, exactly_once: bool
):
    protocol = PROTOCOLS["kip-848"]
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    first = cluster.start(HoldOne(), user=protocol)
    until(lambda: (cluster.committed("only") == {0: 1} and first.acked == 9) or first.error)
    first.stop()
    monkeypatch.setattr("acktree.producers.worker.loop.make_consumer", Stale)
    second = cluster.start(Forward(), user=protocol)
    until(lambda: cluster.committed("only") == {0: 10} or second.error)
    assert second.executed == 1
    second.stop()
    assert values(cluster) == Counter(range(10))


@pytest.mark.parametrize(("exactly_once", "expected"), [(False, (10_000, 3_000)), (True, (6_000, 2_000))])
def test_an_exactly_once_worker_has_the_shortest_session_that_brokers_allow(
    exactly_once: bool, expected: tuple[int, int]
):
    made = group_settings("broker", "group", {}, exactly_once=exactly_once)
    assert (made["session.timeout.ms"], made["heartbeat.interval.ms"]) == expected


def test_a_users_session_timeout_takes_precedence_and_kip_848_has_none():
    user = {"session.timeout.ms": "45000", "heartbeat.interval.ms": "5000"}
    made = group_settings("broker", "group", user, exactly_once=True)
    assert {name: made[name] for name in user} == user
    new = group_settings("broker", "group", PROTOCOLS["kip-848"], exactly_once=True)
    assert new.keys().isdisjoint(user)


@with_kip_848
def test_a_worker_for_which_no_partition_is_left_is_ready(cluster: WorkerCluster, protocol: dict[str, str]):
    cluster.apply(only=(["a"], []))
    workers = [cluster.start(Forward(), user=protocol) for _ in range(3)]
    for worker in workers:
        worker.stop()
