"""The worked examples again, through a real broker: bytes, group, results and all."""

import itertools
import uuid

import pytest

from acker.cluster import AckerCluster, wait_for

pytestmark = pytest.mark.xdist_group("acker")
ROOTS = itertools.count(1 << 62)


@pytest.fixture(scope="module")
def cluster(bootstrap):
    cluster = AckerCluster(bootstrap, f"t{uuid.uuid4().hex[:10]}", tasks=2, ackers=3)
    cluster.acker = cluster.start()
    yield cluster
    cluster.close()


@pytest.fixture
def root():
    return next(ROOTS)


def test_a_tuple_to_two_bolts_and_both_to_a_third(cluster, root):
    cluster.init(root, 1, 2).ack(root, 1, 3).ack(root, 2, 4).ack(root, 3).ack(root, 4).await_acked([root])


def test_a_chain(cluster, root):
    cluster.init(root, 10).ack(root, 10, 11).ack(root, 11, 12).ack(root, 12).await_acked([root])


def test_a_diamond(cluster, root):
    cluster.init(root, 1).ack(root, 1, 2, 3).ack(root, 2, 4).ack(root, 3, 5).ack(root, 4).ack(root, 5)
    cluster.await_acked([root])


def test_a_tuple_emitted_twice_anchored_to_the_same_tuple(cluster, root):
    cluster.init(root, 1).ack(root, 1, 2, 3).ack(root, 2).ack(root, 3).await_acked([root])


def test_a_join_of_two_roots(cluster, root):
    other = next(ROOTS)
    cluster.init(root, 1).init(other, 2).ack(root, 1, 7).ack(other, 2, 8).ack(root, 7).ack(other, 8)
    cluster.await_acked([root, other])


def test_a_fail_before_its_init(cluster, root):
    cluster.fail(root, "größer").sent().init(root, 1).await_failed([root])
    assert cluster.failed[root].reason == "größer"
    assert cluster.failed[root].task == "bolt-0"


def test_an_ack_before_its_init(cluster, root):
    cluster.ack(root, 1).sent().init(root, 1).await_acked([root])


@pytest.mark.promise("3")
def test_a_second_init_does_not_complete_a_tree(cluster, root):
    cluster.init(root, 1, 2).init(root, 1, 2).sent()
    cluster.init(root + 10**6, 0).await_acked([root + 10**6])
    assert root not in cluster.acked
    cluster.ack(root, 1, 2).await_acked([root])


def test_an_init_of_a_record_that_yields_nothing(cluster, root):
    cluster.init(root, 0).await_acked([root])


def test_many_roots_in_large_records_are_all_reported(cluster):
    roots = [next(ROOTS) for _ in range(60_000)]
    cluster.init_many([(root, 5) for root in roots]).ack_many([(root, 5) for root in roots])
    cluster.await_acked(roots)
    assert len(set(cluster.acked)) == len(cluster.acked)


def test_each_spout_task_gets_results_on_its_own_topic(cluster, root):
    cluster.init(root, 0, task=1).await_acked([root])
    reader = cluster.reader([f"{cluster.name}.spout-1"])
    found = []
    wait_for(lambda: found, "a result on spout-1", step=lambda: found.extend(reader.consume(1, 1)))


def test_the_acker_reports_its_counts(cluster, root):
    roots = [next(ROOTS) for _ in range(1_000)]
    cluster.init_many([(each, 5) for each in roots]).ack_many([(each, 5) for each in roots])
    cluster.await_acked(roots)
    cluster.init(root, 1).fail(root).await_failed([root])
    reports = []
    wait_for(
        lambda: reports and reports[-1]["failed"] >= 1 and reports[-1]["acked"] >= 1_000,
        "a report of it",
        step=lambda: reports.append(cluster.last_report().values),
    )
    assert reports[-1]["partitions"] == 3
    assert reports[-1]["timed_out"] == 0
