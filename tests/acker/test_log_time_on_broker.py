"""Timeouts in log time, on a real broker: early, late, away, stalled, held back. Nothing sleeps for luck."""

import time

import pytest
from confluent_kafka import Producer

from acker.cluster import wait_for
from acker.tester import entries
from acktree.schemas.codec import Ack, encode_ack

T_S = 2.0


def now_ms():
    return int(time.time() * 1000)


def test_of_three_roots_the_one_not_acked_times_out_and_in_time(make):
    cluster = make(timeout_s=T_S)
    cluster.start()
    started_ms = now_ms()
    cluster.init_many([(1, 1), (2, 2), (3, 3)]).ack(1, 1).ack(3, 3).await_acked([1, 3])
    cluster.await_failed([2])
    assert cluster.timed_out == {2}
    assert T_S * 1000 <= cluster.when[2] - started_ms <= 1.1 * T_S * 1000 + 1000 + 500


def test_a_reset_keeps_a_root_alive(make):
    cluster = make(timeout_s=T_S)
    cluster.start()
    cluster.init(1, 1).init(2, 2).sent()
    deadline = time.monotonic() + 2.5 * T_S
    while time.monotonic() < deadline:
        cluster.reset(1).sent().collect()
        time.sleep(0.1)
    assert cluster.timed_out == {2}
    cluster.ack(1, 1).await_acked([1])


@pytest.mark.timeout(120)
def test_an_acker_away_for_ten_timeouts_times_out_nothing_that_was_acked_meanwhile(make):
    cluster = make(ackers=2, timeout_s=0.5, orphan_s=60)
    acker = cluster.start_process().await_ready()
    acker.kill()
    away = time.monotonic()
    for start in range(0, 400, 20):
        roots = range(start + 1, start + 21)
        cluster.init_many([(root, root) for root in roots]).sent()
        cluster.ack_many([(root, root) for root in roots]).sent()
        wait_for(lambda: time.monotonic() > away + 5 * (start + 20) / 400, "time to pass")  # noqa: B023
    cluster.start()
    cluster.await_acked(range(1, 401))
    assert cluster.failed == {}


def test_a_hanging_transaction_on_the_ack_topic_times_out_nothing_that_was_acked(make, bootstrap):
    cluster = make(ackers=1, timeout_s=1, orphan_s=60)
    acker = cluster.start()
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": cluster.name, "transaction.timeout.ms": 60_000}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(f"{cluster.name}.ack", encode_ack(Ack("t", 1, entries([(9, 9)]))), partition=0)
    producer.flush()
    roots = range(100, 200)
    cluster.init_many([(root, root) for root in roots]).ack_many([(root, root) for root in roots]).sent()
    partition = acker.acker._ownership.partitions[0]
    wait_for(lambda: partition.table.pending == 100, "the inits")
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() > begin + 4, "four timeouts", step=cluster.collect)
    assert cluster.failed == {}
    producer.commit_transaction()
    cluster.await_acked(roots)
    assert cluster.failed == {}


def test_a_stalled_acker_times_out_nothing_that_was_acked_while_it_stood_still(make):
    cluster = make(ackers=1, timeout_s=1, orphan_s=60)
    acker = cluster.start_process().await_ready()
    cluster.init(1, 0).await_acked([1])
    cluster.init_many([(root, root) for root in range(100, 200)]).sent()
    acker.pause()
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() > begin + 3, "three timeouts")
    cluster.ack_many([(root, root) for root in range(100, 200)]).sent()
    acker.go_on()
    cluster.await_acked(range(100, 200))
    assert cluster.failed == {}
