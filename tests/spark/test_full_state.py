"""A state that its topic does not take, and a commit with more records than the client's queue holds."""

from collections.abc import Callable
from contextlib import suppress
from unittest.mock import Mock

import pytest

from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.producers.spouts.driver.spout_states import SpoutStates
from acktree.producers.spouts.state_topic import StateTopic
from acktree.wire.control_records import Cause
from acktree.wire.state_records import MAX_STATE_BYTES, SlotKey
from simulated_kafka import Simulation
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated

SMALL_QUEUE = {"kafka.queue.buffering.max.messages": "3"}
PARTITIONS = 20


def state_topic(t: SpoutTester) -> StateTopic:
    return StateTopic(t.admin, t.bootstrap, {}, f"{t.name}.in", f"{t.name}.state-in", f"{t.name}.in")


@pytest.mark.real
def test_a_state_at_the_limit_is_written_and_a_larger_one_says_what_to_raise(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0)
    t.driver.close()
    topic, key = state_topic(t), SlotKey("lines", 7, "an-id")
    topic.take_over(SpoutStates())
    topic.commit({b"lines/3/an-id": b"before", key.encode(): bytes(MAX_STATE_BYTES - 1_000)})
    wanted = r"lines/7: 8,388,621 bytes.*max\.message\.bytes=16777242,segment\.bytes=33554484"
    with pytest.raises(BrokerRefused, match=wanted):
        topic.commit({b"lines/3/an-id": b"after", key.encode(): bytes(MAX_STATE_BYTES)})
    topic.commit({key.encode(): None})
    topic.commit({b"lines/3/an-id": b"after"})


def test_a_state_too_large_for_its_topic_loses_nothing_until_the_limit_is_raised(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=4_000, max_pending=10_000)
    emitted = t.emitted(t.next_batch())
    t.serve(0.0)
    before = t.states()
    t.limit("state-in", 2_000)
    t.send_result(acked=emitted[1::2])
    for _ in range(2):
        with pytest.raises(
            BrokerRefused, match=rf"the state of {t.name}\.source/0: .*max\.message\.bytes=8388608,"
        ):
            t.until(lambda: False)
        with pytest.raises(BrokerRefused, match=r"max\.message\.bytes"):
            t.driver.close()
        after = t.states()
        assert (after.spout, after.slots) == (before.spout, before.slots)
        t.limit("state-in", 2_000_000)
        t.start()
        t.limit("state-in", 2_000)
        before = t.states()
    t.limit("state-in", 2_000_000)
    with suppress(BrokerRefused):  # a broker applies a limit a moment after it has answered
        t.until(lambda: t.count("completed") == 2_000)
    t.until(lambda: t.count("completed") == 2_000)
    assert t.next_batch() is None, "all is in flight, or done"
    t.send_result(acked=emitted[::2])
    t.until(lambda: t.committed() == 4_000)


def test_a_plan_whose_commit_fails_is_not_committed_when_the_driver_closes(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark was given no batch then, so nobody would ever write what the plan emits."""
    t = spout(records=0)
    t.next_batch()
    t.send(10)
    with monkeypatch.context() as away:
        refuse = BrokerUnreachable("no Kafka broker answers")
        away.setattr(StateTopic, "commit", Mock(side_effect=refuse))
        with pytest.raises(BrokerUnreachable):
            t.next_batch()
    t.driver.close()
    (slot,) = t.states().slots.values()
    assert slot.next_offset == 0
    t.start()
    assert len(t.emitted(t.next_batch())) == 10


def test_a_commit_with_more_records_than_the_queue_of_the_client_holds_waits_for_it(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=1, partitions=PARTITIONS, options=SMALL_QUEUE)
    assert len(t.states().slots) == PARTITIONS
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 1)
    t.start()
    assert len(t.states().slots) == PARTITIONS
    assert t.next_batch() is None


@pytest.mark.real
def test_a_record_that_the_broker_refuses_while_the_queue_is_full_is_named(
    spout: Callable[..., SpoutTester],
) -> None:
    """The client takes no more records for the transaction then, as if it were fenced."""
    t = spout(records=0)
    t.driver.close()
    topic = StateTopic(
        t.admin,
        t.bootstrap,
        {"queue.buffering.max.messages": "3"},
        f"{t.name}.in",
        f"{t.name}.state-in",
        f"{t.name}.in",
    )
    topic.take_over(SpoutStates())
    large, small = SlotKey("lines", 0, "an-id"), [SlotKey("lines", n, "an-id") for n in range(1, PARTITIONS)]
    records = {large.encode(): bytes(MAX_STATE_BYTES), **{key.encode(): b"small" for key in small}}
    with pytest.raises(BrokerRefused, match=r"lines/0.*max\.message\.bytes"):
        topic.commit(records)
    topic.commit({key.encode(): b"small" for key in small})


def test_a_dead_letter_that_is_too_large_is_shortened_even_if_the_queue_is_full(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0, max_attempts=1, partitions=PARTITIONS, options=SMALL_QUEUE)
    t.limit("dead-letter", 10_000)
    t.producer.produce(f"{t.name}.source", b"x" * 20_000, partition=0)
    t.producer.flush()
    ((offset, generation),) = t.emitted(t.next_batch())
    t.driver.tasks[0].slots[0].begin_run()
    t.send_result(failed=[(offset, generation, Cause.FAILED)])
    t.until(lambda: t.count("dead_lettered") == 1)
    assert t.driver.commits.positions[0].read == 1


@pytest.mark.virtual
def test_a_commit_waits_for_a_full_queue_while_the_broker_accepts_nothing(
    spout: Callable[..., SpoutTester], simulation: Simulation
) -> None:
    t = spout(records=0, partitions=PARTITIONS, options=SMALL_QUEUE)
    began_s = simulation.kernel.now_s
    simulation.cluster.holds = lambda _writer, topic, _age_s: (
        topic == f"{t.name}.state-in" and simulation.kernel.now_s < began_s + 20
    )
    t.start()
    assert simulation.kernel.now_s >= began_s + 20
    assert len(t.states().slots) == PARTITIONS
