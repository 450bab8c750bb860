"""What the acker rejects: invalid and foreign records, half partitions, unsafe settings."""

import random

import pytest

from acker.cluster import wait_for
from acker.tester import entries
from acktree.acker.kafka.membership import group_settings
from acktree.acker.service import Acker
from acktree.core.errors import MissingTopic, RefusedSetting, UnknownTopology
from acktree.core.kafka.clients import make_admin
from acktree.wire.codec import ACK_FRAME, ACK_INIT_FRAME, encode_ack, encode_ack_init
from acktree.wire.control_records import Ack, AckInit
from deadlines import ANSWER_S

pytestmark = pytest.mark.simulated

CLASSIC, KIP_848 = {}, {"group.protocol": "consumer"}


def noise(seed):
    """Bytes of every kind of wrong, for either topic."""
    source = random.Random(seed)
    good = encode_ack(Ack("t", 1, entries([(2, 2), (4, 4)])))
    init = encode_ack_init(AckInit(0, 1, entries([(2, 2), (4, 4)])))
    while True:
        yield source.choice(
            [
                b"",
                source.randbytes(40),
                ACK_FRAME + source.randbytes(20),
                ACK_INIT_FRAME + b"\x00\x02" + b"\xfe\xff\xff\xff\x0f",
                good[: source.randrange(len(good))],
                init[: source.randrange(len(init))],
                good + b"\x00",
                init + b"\x00",
            ]
        )


def test_a_flood_of_invalid_records_is_rejected_and_counted(make):
    cluster = make(ackers=1)
    acker = cluster.start()
    source = noise(7)
    for _ in range(3000):
        cluster.send("ack", 0, next(source)).send("ack-init", 0, next(source))
    cluster.init(8, 1).ack(8, 1).await_acked([8])
    assert acker.acker.invalid.total == 6000
    assert len(acker.acker.invalid.latest) == 1000
    assert {record.topic for record in acker.acker.invalid.latest} <= {
        place.topic for place in cluster.places()
    }
    assert acker.error is None
    assert cluster.acked == [8]


@pytest.mark.real
def test_foreign_records_are_rejected_whole_with_their_coordinates(make):
    cluster = make(ackers=2)
    acker = cluster.start()
    init, ack = f"{cluster.name}.ack-init", f"{cluster.name}.ack"

    def inits(pairs, task=0, version=1):
        return encode_ack_init(AckInit(task, version, entries(pairs)))

    cluster.send("ack-init", 0, inits([(2, 0), (3, 0)]))
    cluster.send("ack-init", 0, inits([(2, 0), (0, 0)]))
    cluster.send("ack-init", 0, inits([(2, 0)], task=9))
    cluster.send("ack-init", 0, inits([(2, 0)], version=44))
    cluster.send("ack-init", 0, inits([(2, 0)], version=-1))
    cluster.send("ack", 1, encode_ack(Ack("t", 1, entries([(2, 2)]))))
    cluster.sent().init(4, 0).init(5, 0).ack(7, 1).await_acked([4, 5])
    wait_for(lambda: acker.acker.invalid.total == 6, "six rejected records")
    latest = sorted((record.topic, record.partition, record.offset) for record in acker.acker.invalid.latest)
    assert latest == [(ack, 1, 0), *((init, 0, offset) for offset in range(5))]
    reasons = " | ".join(record.reason for record in acker.acker.invalid.latest)
    for expected in (
        "does not belong to partition 0",
        "root id is 0",
        "spout task 9 does not exist",
        "version 44",
    ):
        assert expected in reasons
    assert sorted(cluster.acked) == [4, 5]


def test_the_first_records_of_a_version_just_published_are_folded(make):
    cluster = make(ackers=2)
    acker = cluster.start()
    cluster.apply(2, timeout_s=29)
    cluster.init(1, 0).init(2, 0).await_acked([1, 2])
    assert acker.acker.invalid.total == 0


def test_an_assignor_that_separates_the_topics_is_refused():
    for protocol, key in ((CLASSIC, "partition.assignment.strategy"), (KIP_848, "group.remote.assignor")):
        with pytest.raises(RefusedSetting, match="only range"):
            group_settings("localhost:1", "g", {**protocol, key: "uniform"})


def test_an_unknown_topology_and_a_missing_topic_are_clear_errors(make, kafka):
    cluster, admin = make(), make_admin(kafka, {})
    with pytest.raises(UnknownTopology, match="acktree topology apply"):
        Acker(kafka, cluster.name + "x")
    topic = f"{cluster.name}.ack"
    admin.delete_topics([topic])[topic].result()
    wait_for(lambda: topic not in admin.list_topics(timeout=ANSWER_S).topics, "the topic to be gone")
    with pytest.raises(MissingTopic, match="does not exist"):
        Acker(kafka, cluster.name)


def test_root_ids_above_the_signed_range_reach_the_right_partition(make):
    cluster = make(ackers=3)
    acker = cluster.start()
    roots = [1, 2**63 - 1, 2**63, 2**64 - 1]
    cluster.init_many([(root, 0) for root in roots]).await_acked(roots)
    assert acker.acker.invalid.total == 0


def test_an_acker_ends_when_a_control_topic_is_deleted(make, kafka):
    cluster, admin = make(), make_admin(kafka, {})
    acker = cluster.start()
    topic = f"{cluster.name}.ack"
    admin.delete_topics([topic])[topic].result()
    wait_for(lambda: acker.error, "the acker to end")
    with pytest.raises(MissingTopic, match="does not exist"):
        raise acker.error
