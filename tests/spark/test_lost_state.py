"""The state topic of a spout is lost or cannot be read; two drivers; a batch that Spark has never logged."""

from collections.abc import Callable

import pytest

from acktree.core.errors import MissingTopic
from acktree.producers.spouts.driver.sources.source_topics import SpoutTopics
from acktree.producers.spouts.state_topic import UnreadableState, ZombieDriver
from acktree.wire.avro import FRAME_BYTES, zigzag
from acktree.wire.state_records import (
    SPOUT_KEY,
    VERSION,
    SlotState,
    SpoutState,
    StateStart,
    TaskState,
    encode_slot_state,
    encode_spout_state,
    encode_state_start,
    encode_task_state,
    task_key,
    task_start_key,
)
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated

STATE = encode_spout_state(SpoutState(term=1, driver="host/1"))
NEWER = STATE[:FRAME_BYTES] + zigzag(VERSION + 1) + STATE[FRAME_BYTES + 1 :]


def finish_two_of_ten(t: SpoutTester) -> None:
    """Emit ten records, have the first two and one behind them acked, and stop."""
    t.send(10)
    emitted = t.emitted(t.next_batch())
    t.next_batch()
    t.send_result(acked=[*emitted[:2], emitted[5]])
    t.until(lambda: t.committed() == 2 and t.count("completed") == 3)
    t.driver.close()


@pytest.mark.promise("a spout's state topic")
@pytest.mark.real
def test_a_spout_whose_state_is_lost_continues_at_its_drivers_committed_offsets(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0)
    finish_two_of_ten(t)
    t.delete_state()
    with pytest.raises(MissingTopic, match="acktree topology apply"):
        t.start()
    t.apply()
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(2, 10))
    t.next_batch()
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)


@pytest.mark.promise("a spout's state topic … and the group's offsets")
@pytest.mark.real
def test_a_spout_whose_state_and_offsets_are_lost_skips_nothing(spout: Callable[..., SpoutTester]) -> None:
    """Although it is to begin at the end: its results show that it has begun before."""
    t = spout(records=0, options={"startingOffsets": "latest"})
    finish_two_of_ten(t)
    t.delete_state()
    t.admin.delete_consumer_groups([f"{t.name}.in"])[f"{t.name}.in"].result()
    t.apply()
    t.batch = None
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == list(range(10))


@pytest.mark.promise("a record on a spout's state topic is damaged, or of a newer version")
@pytest.mark.real
@pytest.mark.parametrize(
    ("value", "why"),
    [(STATE[:-1], ""), (NEWER, "state has version 2, but this process supports 1")],
    ids=["damaged", "newer"],
)
def test_a_state_that_cannot_be_read_stops_the_spout_with_its_coordinates(
    spout: Callable[..., SpoutTester], value: bytes, why: str
) -> None:
    t = spout(records=0)
    t.driver.close()
    t.write_state(SPOUT_KEY, value)
    with pytest.raises(UnreadableState, match=rf"{t.name}\.state-in/0/\d+ cannot be read .*{why}"):
        t.start()


def test_a_damaged_bitmap_of_a_partition_stops_the_spout_with_its_coordinates(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=3)
    (key,) = t.states().slots
    t.driver.close()
    t.write_state(key.encode(), encode_slot_state(SlotState(0, 3, 1, b"no bitmap")))
    with pytest.raises(
        UnreadableState, match=rf"{t.name}\.state-in/0/\d+ cannot be read .*bitmap is damaged"
    ):
        t.start()


def test_a_spout_that_was_a_python_spout_starts_without_a_state(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=3)
    t.driver.close()
    t.write_state(task_key(0), encode_task_state(TaskState(7, "host/1", 7, 9)))
    t.write_state(task_start_key(0), encode_state_start(StateStart(3, 1)))
    t.start()
    assert t.spout_state().term < 7


def test_a_driver_that_fails_during_its_start_leaves_the_state_unchanged(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark closes it, and starts another one; what the first has restored is not lost with it."""
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[5:])
    t.until(lambda: t.count("completed") == 5)
    t.driver.close()
    before, t.batch = t.states(), None
    with monkeypatch.context() as broken:
        broken.setattr(SpoutTopics, "log_ends", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            t.start()
        t.driver.close()
    after = t.states()
    assert (after.spout, after.slots) == (before.spout, before.slots)
    t.start()
    assert t.next_batch() is None, "all is in flight, or done"
    t.send_result(acked=emitted[:5])
    t.until(lambda: t.committed() == 10)


@pytest.mark.promise("a second driver of a spout starts")
@pytest.mark.real
def test_the_older_of_two_drivers_stops_and_the_newer_one_continues(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    older = t.driver
    t.start()
    assert t.next_batch() is None, "what is in flight is not emitted again"
    t.send_result(acked=emitted)
    t.now_s += 1
    with pytest.raises(ZombieDriver):
        older.service(0.0)
    t.until(lambda: t.committed() == 10)


@pytest.mark.promise("the Spark driver … between planning a batch and its entry in Spark's log")
@pytest.mark.real
def test_a_batch_that_was_planned_and_not_logged_is_planned_again(
    spout: Callable[..., SpoutTester], caplog: pytest.LogCaptureFixture
) -> None:
    t = spout(records=10)
    checkpoint = t.batch
    t.next_batch()
    t.batch = checkpoint
    t.start()
    assert [line.action for line in caplog.records if hasattr(line, "action")] == []
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(10))
    t.next_batch()
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)
