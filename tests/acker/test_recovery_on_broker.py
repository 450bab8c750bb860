"""Crashes, rebalances, commits and growth: every result comes, none is wrong."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from acker.cluster import wait_for
from acker.tester import entries
from acktree.acker.kafka.membership import SESSION_TIMEOUT_MS, shorten_session
from acktree.acker.kafka.result_producer import ResultProducer
from acktree.core.kafka.clients import make_admin, make_producer
from acktree.core.kafka.log_reader import LogReader
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import Ack, AckInit
from deadlines import ANSWER_S

pytestmark = pytest.mark.simulated

CLASSIC, KIP_848 = {}, {"group.protocol": "consumer"}
PROTOCOLS = pytest.mark.parametrize(
    "protocol",
    [pytest.param(CLASSIC, id="classic"), pytest.param(KIP_848, id="kip-848", marks=pytest.mark.real)],
)


def test_when_quiet_the_cut_is_the_end_of_the_log_transaction_markers_included(make, kafka):
    cluster = make(ackers=1)
    cluster.start()
    producer = make_producer({"bootstrap.servers": kafka, "transactional.id": cluster.name})
    producer.init_transactions()
    for abort in (False, True, False, True):
        producer.begin_transaction()
        producer.produce(
            f"{cluster.name}.ack-init", encode_ack_init(AckInit(0, 1, entries([(6, 6)]))), partition=0
        )
        producer.produce(f"{cluster.name}.ack", encode_ack(Ack("t", 1, entries([(6, 6)]))), partition=0)
        producer.flush()
        (producer.abort_transaction if abort else producer.commit_transaction)()
    cluster.await_acked([6])
    wait_for(lambda: cluster.committed() == cluster.ends(), "the cut at the end of the log")
    assert sum(cluster.ends()) == 16


def test_a_pending_root_holds_the_cut_and_its_result_releases_it(make):
    cluster = make(ackers=1)
    acker = cluster.start()
    cluster.init(1, 1).sent()
    for root in range(10, 20):
        cluster.init(root, root).ack(root, root).await_acked([root])
    assert acker.acker.ownership.partitions[0].cut == (0, 0)
    wait_for(lambda: cluster.last_report().values["acked"] == 10, "a report")
    assert cluster.committed() == [0, 0]
    cluster.ack(1, 1).await_acked([1])
    wait_for(lambda: cluster.committed() == cluster.ends(), "the cut at the end of the log")


def test_late_acks_of_finished_roots_do_not_hold_the_cut(make):
    cluster = make(ackers=1, timeout_s=30, orphan_s=300)
    acker = cluster.start()
    cluster.init(1, 1).init(2, 2).ack(1, 1).fail(2).await_acked([1]).await_failed([2])
    cluster.ack(1, 1).fail(1).reset(1).ack(2, 2).init(3, 0).await_acked([3])
    wait_for(lambda: cluster.committed() == cluster.ends(), "the cut at the end of the log")
    assert acker.acker.figures()["late"] == 4
    assert acker.acker.figures()["orphans"] == 0


def test_an_orphan_whose_init_never_comes_releases_the_cut_long_before_it_expires(make):
    cluster = make(ackers=1, timeout_s=2, orphan_s=300)
    acker = cluster.start()
    cluster.ack(5, 1).init(1, 0).await_acked([1])
    wait_for(lambda: cluster.committed() == cluster.ends(), "the cut at the end of the log")
    assert acker.acker.figures()["orphans"] == 1
    cluster.init(5, 1).await_acked([5])


def test_no_cut_is_committed_before_the_broker_has_the_results(make, monkeypatch):
    cluster = make(ackers=1)
    cluster.start()
    flushes = []
    monkeypatch.setattr(ResultProducer, "flush", lambda _: flushes.append(1) and False)
    cluster.init(1, 0).await_acked([1])
    wait_for(lambda: len(flushes) >= 2, "two attempts to commit")
    assert cluster.committed() == [0, 0]
    monkeypatch.undo()
    wait_for(lambda: cluster.committed() == cluster.ends(), "the commit")


def test_a_crash_inside_a_fold_commits_nothing(make, monkeypatch):
    cluster = make(ackers=1)
    acker = cluster.start()
    monkeypatch.setattr("acktree.acker.service.encode_finished", lambda *_: 1 / 0)
    cluster.init(1, 0).sent()
    wait_for(lambda: acker.error is not None, "the crash")
    assert isinstance(acker.error, ZeroDivisionError)
    assert cluster.committed() == [0, 0]
    monkeypatch.undo()
    cluster.start()
    cluster.await_acked([1])


def test_a_commit_that_the_group_refuses_does_not_end_the_loop(make):
    cluster = make(ackers=1)
    acker = cluster.start()
    own = acker.acker.ownership
    for code in (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
    ):
        own.on_commit(KafkaError(code), [TopicPartition(f"{cluster.name}.ack", 0, 99)])
    cluster.init(1, 0).await_acked([1])
    assert own.failed_commits == 3
    wait_for(lambda: cluster.committed() == cluster.ends(), "the cut at the end of the log")


def test_an_ack_stream_that_is_reset_backwards_is_folded_once(make):
    cluster = make(ackers=1)
    acker = cluster.start()
    cluster.init(1, 1, 2).ack(1, 1).sent()
    partition = acker.acker.ownership.partitions[0]
    wait_for(lambda: partition.positions == (1, 1), "both records folded")
    acker.acker.reader.consumer.seek(TopicPartition(f"{cluster.name}.ack", 0, 0))
    cluster.ack(1, 2).await_acked([1])
    assert partition is acker.acker.ownership.partitions[0]
    assert partition.table.folded == 3


@PROTOCOLS
def test_a_partition_that_leaves_and_returns_is_folded_from_its_cut(make, protocol):
    cluster = make(ackers=2)
    first = cluster.start(**protocol)
    cluster.init_many([(2, 1 ^ 2), (3, 1 ^ 2)]).ack_many([(2, 1), (3, 1)]).sent()
    wait_for(lambda: sum(p.table.folded for p in first.acker.ownership.partitions.values()) == 4, "the fold")
    second = cluster.start(**protocol)
    wait_for(lambda: len(first.partitions) == len(second.partitions) == 1, "one partition each")
    second.stop()
    wait_for(lambda: first.partitions == [0, 1], "both partitions again")
    cluster.ack_many([(2, 2), (3, 2)]).await_acked([2, 3])
    assert cluster.failed == {}


def group_session(kafka, group):
    """What the broker has as the group's session timeout, in milliseconds."""
    admin = make_admin(kafka, {})
    (answer,) = admin.describe_configs([ConfigResource(ConfigResource.Type.GROUP, group)]).values()
    return int(answer.result(ANSWER_S)["consumer.session.timeout.ms"].value)


def least_session(kafka):
    """The least session timeout that the brokers allow, in milliseconds."""
    admin = make_admin(kafka, {})
    broker = ConfigResource(ConfigResource.Type.BROKER, str(min(admin.list_topics(timeout=ANSWER_S).brokers)))
    (answer,) = admin.describe_configs([broker]).values()
    return int(answer.result(ANSWER_S)["group.consumer.min.session.timeout.ms"].value)


@pytest.mark.timeout(240)
def test_with_kip_848_a_lost_static_member_is_removed_after_the_session_timeout(make, kafka):
    """The group has our session timeout unless the brokers refuse it, as they do by default."""
    cluster = make(ackers=2)
    stays, leaves = (cluster.start(**KIP_848, **{"group.instance.id": name}) for name in ("stays", "leaves"))
    wait_for(lambda: len(stays.partitions) == len(leaves.partitions) == 1, "one partition each", 120)
    if least_session(kafka) <= SESSION_TIMEOUT_MS:
        assert group_session(kafka, f"{cluster.name}.acker") == SESSION_TIMEOUT_MS
    leaves.stop()
    wait_for(lambda: stays.partitions == [0, 1], "both partitions", deadline_s=120)
    cluster.init_many([(2, 0), (3, 0)]).await_acked([2, 3])


def test_a_former_member_can_read_the_cut(make, kafka):
    """A starved member's session may end while it takes over; a question of its own would be refused."""
    cluster = make(ackers=1)
    acker = cluster.start(**KIP_848)
    cluster.init(1, 0).await_acked([1])
    acker.stop()
    place = (f"{cluster.name}.ack-init", 0)
    starts = []
    consumer = SimpleNamespace(incremental_assign=starts.extend)
    taker = LogReader(consumer, kafka, f"{cluster.name}.acker", KIP_848, is_member=True)
    acker.acker.ownership.is_leaving = False
    acker.acker.ownership.on_assign(taker, [TopicPartition(*place)])
    assert [(start.topic, start.partition, start.offset) for start in starts] == [(*place, 1)]


def test_a_session_timeout_set_by_an_operator_is_kept(make, kafka):
    cluster, admin = make(ackers=1), make_admin(kafka, {})
    group = f"{cluster.name}.acker"
    change = ConfigEntry("consumer.session.timeout.ms", "50000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[change])
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(ANSWER_S)
    wait_for(lambda: group_session(kafka, group) == 50_000, "the broker to know it")
    cluster.start(**KIP_848)
    assert group_session(kafka, group) == 50_000


def test_a_broker_that_refuses_the_session_timeout_only_causes_a_warning(make, kafka, caplog):
    cluster, admin = make(ackers=1), make_admin(kafka, {})
    shorten_session(admin, f"{cluster.name}.acker", session_ms=100)
    assert "group.consumer.min.session.timeout.ms=100" in caplog.text
    assert "noticed after the broker's session timeout" in caplog.text


def test_an_acker_without_a_partition_is_ready(make):
    cluster = make(ackers=1)
    first, second = cluster.start(), cluster.start()
    wait_for(lambda: sorted([first.partitions, second.partitions]) == [[], [0]], "the end of the rebalance")
    assert sorted(text.partition(": ")[2] for text in first.ready + second.ready)[-1] in (
        "partitions 0",
        "idle",
    )
    cluster.init(1, 0).await_acked([1])


def test_a_grown_acker_count_finishes_old_roots_where_they_began(make):
    cluster = make(ackers=1)
    acker = cluster.start()
    cluster.init_many([(root, root) for root in range(1, 9)]).sent()
    cluster.apply(4)
    cluster.init_many([(root, root) for root in range(11, 19)]).sent()
    cluster.ack_many([(root, root) for root in range(1, 9)], version=1)
    cluster.ack_many([(root, root) for root in range(11, 19)]).await_acked([*range(1, 9), *range(11, 19)])
    wait_for(lambda: acker.partitions == [0, 1, 2, 3], "four partitions")
    assert cluster.failed == {}
    assert acker.acker.invalid.total == 0


def test_after_tracking_is_turned_off_old_roots_still_finish(make):
    cluster = make(ackers=2)
    acker = cluster.start()
    cluster.init_many([(1, 1), (2, 2)]).sent()
    cluster.apply(0)
    wait_for(lambda: acker.acker.latest.ackers == 0, "the acker to learn of it")
    cluster.ack_many([(1, 1), (2, 2)], version=1).await_acked([1, 2])


@pytest.mark.real
def test_a_process_stops_cleanly_and_leaves_the_cut_at_the_end(make):
    cluster = make(ackers=1)
    acker = cluster.start_process().await_ready()
    cluster.init(1, 0).await_acked([1])
    assert acker.stop() == 0
    assert cluster.committed() == cluster.ends() == [1, 0]
