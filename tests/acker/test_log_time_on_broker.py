"""Timeouts in log time: early, late, away, stalled, held back. Nothing sleeps for luck."""

import pytest

from acker.cluster import wait_for
from acker.tester import entries
from acktree.core.kafka.clients import make_producer
from acktree.wire.codec import encode_ack
from acktree.wire.control_records import Ack

pytestmark = pytest.mark.simulated

T_S = 2.0
RESET_T_S = 3.0  # more than a busy machine keeps this process from running


@pytest.mark.real
def test_the_unacked_one_of_three_roots_times_out_and_not_early(make):
    cluster = make(timeout_s=T_S)
    cluster.start()
    cluster.init(2, 2).sent()
    born_ms = cluster.appended_ms
    cluster.init_many([(1, 1), (3, 3)]).ack(1, 1).ack(3, 3).await_acked([1, 3])
    cluster.await_failed([2])
    assert cluster.timed_out == {2}
    assert cluster.when[2] >= born_ms + T_S * 1000


def test_a_reset_keeps_a_root_alive(make):
    cluster = make(timeout_s=RESET_T_S)
    cluster.start()
    cluster.init(1, 1)
    for other in (2, 3):
        cluster.init(other, other).sent()
        wait_for(
            lambda: other in cluster.failed,  # noqa: B023
            "the timeout of a root without resets",
            step=lambda: cluster.reset(1).sent().collect(),
        )
    assert cluster.timed_out == {2, 3}
    cluster.ack(1, 1).await_acked([1])


@pytest.mark.timeout(120)
def test_an_acker_away_for_ten_timeouts_times_out_nothing_that_was_acked_meanwhile(make):
    cluster = make(ackers=2, timeout_s=0.5, orphan_s=60)
    acker = cluster.start_process().await_ready()
    acker.kill()
    for start in range(0, 400, 20):
        roots = range(start + 1, start + 21)
        cluster.init_many([(root, root) for root in roots]).sent()
        cluster.ack_many([(root, root) for root in roots]).sent()
        cluster.let_log_time_pass(250)
    cluster.start()
    cluster.await_acked(range(1, 401))
    assert cluster.failed == {}


def test_a_hanging_transaction_on_the_ack_topic_times_out_nothing_that_was_acked(make, kafka):
    cluster = make(ackers=1, timeout_s=1, orphan_s=60)
    acker = cluster.start()
    producer = make_producer(
        {"bootstrap.servers": kafka, "transactional.id": cluster.name, "transaction.timeout.ms": 60_000}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(f"{cluster.name}.ack", encode_ack(Ack("t", 1, entries([(9, 9)]))), partition=0)
    producer.flush()
    roots = range(100, 200)
    cluster.init_many([(root, root) for root in roots]).ack_many([(root, root) for root in roots]).sent()
    partition = acker.acker.ownership.partitions[0]
    wait_for(lambda: partition.table.pending == 100, "the inits")
    cluster.let_log_time_pass(4000)
    inits = partition.clock.inits
    wait_for(lambda: inits.time_ms >= cluster.appended_ms, "four timeouts", step=cluster.collect)
    assert cluster.failed == {}
    producer.commit_transaction()
    cluster.await_acked(roots)
    assert cluster.failed == {}


def test_a_stalled_acker_times_out_nothing_that_was_acked_during_the_stall(make):
    cluster = make(ackers=1, timeout_s=1, orphan_s=60)
    acker = cluster.start_process().await_ready()
    cluster.init(1, 0).await_acked([1])
    cluster.init_many([(root, root) for root in range(100, 200)]).sent()
    acker.pause()
    cluster.let_log_time_pass(3000)
    cluster.ack_many([(root, root) for root in range(100, 200)]).sent()
    acker.go_on()
    cluster.await_acked(range(100, 200))
    assert cluster.failed == {}
