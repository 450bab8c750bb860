"""Both control topics in step while much is behind: the one ahead waits, and never for nothing."""

from types import SimpleNamespace

import pytest

from acker.cluster import wait_for
from acker.tester import entries
from acktree.acker.folding.alignment import AHEAD_MS, NEAR_MS, TopicAlignment
from acktree.acker.folding.clock import UNKNOWN_MS
from acktree.core.kafka.clients import make_producer
from acktree.wire.codec import encode_ack
from acktree.wire.control_records import Ack

INITS, ACKS = 0, 1
BEHIND = False, False
START_MS = 1_000_000


def clock(inits_ms, acks_ms):
    return SimpleNamespace(
        inits=SimpleNamespace(time_ms=START_MS + inits_ms), acks=SimpleNamespace(time_ms=START_MS + acks_ms)
    )


@pytest.mark.parametrize(
    ("times", "waiting"),
    [
        ((0, 0), None),
        ((AHEAD_MS, 0), None),
        ((AHEAD_MS + 1, 0), INITS),
        ((0, AHEAD_MS), None),
        ((0, AHEAD_MS + 1), ACKS),
    ],
)
def test_the_topic_that_is_far_ahead_waits(times, waiting):
    assert TopicAlignment().choose(clock(*times), BEHIND) == waiting


def test_the_documented_limits_of_far_and_near_are_a_minute_and_half_a_minute():
    assert (AHEAD_MS, NEAR_MS) == (60_000, 30_000)


def test_a_topic_waits_until_the_other_is_near_and_not_just_below_the_limit():
    alignment = TopicAlignment()
    assert alignment.choose(clock(AHEAD_MS + 1, 0), BEHIND) == INITS
    assert alignment.choose(clock(AHEAD_MS, AHEAD_MS - NEAR_MS - 1), BEHIND) == INITS
    assert alignment.choose(clock(AHEAD_MS, AHEAD_MS - NEAR_MS), BEHIND) is None
    assert alignment.choose(clock(AHEAD_MS, 0), BEHIND) is None


def test_a_topic_that_overtakes_the_one_that_waited_may_be_as_far_ahead_itself():
    alignment = TopicAlignment()
    assert alignment.choose(clock(AHEAD_MS + 1, 0), BEHIND) == INITS
    assert alignment.choose(clock(0, NEAR_MS + 1), BEHIND) is None
    assert alignment.choose(clock(0, AHEAD_MS + 1), BEHIND) == ACKS


@pytest.mark.parametrize("behind", [INITS, ACKS])
def test_no_topic_waits_for_one_that_has_nothing_to_read(behind):
    alignment, times = TopicAlignment(), clock(*((0, AHEAD_MS + 1) if behind == INITS else (AHEAD_MS + 1, 0)))
    assert alignment.choose(times, [topic == behind for topic in (INITS, ACKS)]) is None
    assert alignment.choose(times, [topic != behind for topic in (INITS, ACKS)]) == 1 - behind


def test_a_topic_without_a_timestamp_is_taken_to_be_where_the_other_began():
    alignment, unknown_ms = TopicAlignment(), UNKNOWN_MS - START_MS
    assert alignment.choose(clock(unknown_ms, unknown_ms), BEHIND) is None
    assert alignment.choose(clock(500, unknown_ms), BEHIND) is None
    assert alignment.choose(clock(500 + AHEAD_MS, unknown_ms), BEHIND) is None
    assert alignment.choose(clock(501 + AHEAD_MS, unknown_ms), BEHIND) == INITS


@pytest.fixture
def narrow(monkeypatch):
    """A minute takes too long for a test: a few milliseconds here."""
    monkeypatch.setattr("acktree.acker.folding.alignment.AHEAD_MS", 40)
    monkeypatch.setattr("acktree.acker.folding.alignment.NEAR_MS", 20)


def test_a_backlog_is_read_evenly_and_to_its_end(make, narrow, monkeypatch):
    """The client fetches a whole topic at once: without a pause the table would hold every root."""
    monkeypatch.setattr("acktree.acker.service.BATCH", 20)
    cluster = make(ackers=1)
    for start in range(1, 2000, 20):
        roots = range(start, start + 20)
        for root in roots:
            cluster.init(root, root).ack(root, root)
        cluster.sent()
    waited, choose = set(), TopicAlignment.choose
    monkeypatch.setattr(
        TopicAlignment,
        "choose",
        lambda alignment, *seen: waited.add(choose(alignment, *seen)) or alignment.waiting,
    )
    acker = cluster.join()
    cluster.await_acked(range(1, 2001))
    assert cluster.failed == {}
    assert waited > {None}
    wait_for(lambda: not acker.acker.ownership.paused, "nothing paused")


@pytest.mark.simulated
@pytest.mark.parametrize("waits_again", [True, False])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_paused_when_its_partition_was_revoked_is_read_when_it_comes_back(
    make, monkeypatch, protocol, waits_again
):
    is_ahead = True
    monkeypatch.setattr(TopicAlignment, "choose", lambda *_: INITS if is_ahead else None)
    cluster = make(ackers=2)
    user = {"group.protocol": protocol}
    acker = cluster.start(**user)
    wait_for(lambda: len(acker.acker.ownership.paused) == 2, "all inits paused")
    other = cluster.start(**user)
    wait_for(lambda: len(acker.acker.ownership.paused) == 1, "one revoked")
    is_ahead = waits_again
    other.stop()
    wait_for(lambda: len(acker.partitions) == 2, "it came back")
    is_ahead = False
    wait_for(lambda: not acker.acker.ownership.paused, "nothing paused")
    roots = range(1, 21)
    for root in roots:
        cluster.init(root, root).ack(root, root)
    cluster.sent().await_acked(roots)


@pytest.mark.simulated
def test_inits_do_not_wait_for_acks_held_back_by_an_open_transaction(make, kafka, narrow):
    cluster = make(ackers=1)
    acker = cluster.start()
    cluster.init(1, 1).ack(1, 1).await_acked([1])
    producer = make_producer({"bootstrap.servers": kafka, "transactional.id": cluster.name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(f"{cluster.name}.ack", encode_ack(Ack("t", 1, entries([(9, 9)]))), partition=0)
    producer.flush()
    for root in range(10, 30):
        cluster.init(root, 0).await_acked([root])
    clocks = acker.acker.ownership.partitions[0].clock
    wait_for(lambda: clocks.inits.time_ms > clocks.acks.time_ms + 400, "inits far ahead")
    cluster.init(40, 0).await_acked([40])
    producer.abort_transaction()
    cluster.init(50, 1).ack(50, 1).await_acked([50])
