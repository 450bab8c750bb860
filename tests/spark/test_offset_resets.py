"""Offsets of a spout's group that somebody else commits: what they skip is lost only if that is allowed."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.producers.spouts.state_topic import StateTopic
from spark.spouts import DEADLINE_S, SpoutTester

pytestmark = pytest.mark.simulated


def test_a_reset_forward_skips_where_that_is_allowed(
    spout: Callable[..., SpoutTester], caplog: pytest.LogCaptureFixture
) -> None:
    t = spout(records=10, options={"allowSkip": "true"})
    t.next_batch(limit=2)
    t.operator_commits(7)
    t.until(lambda: t.count("rewinds") == 1)
    assert f"group {t.name}.in: the offset of {t.name}.source/0 was set from 0 to 7" in caplog.messages
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [7, 8, 9]


def test_an_offset_set_back_while_the_state_is_committed_is_obeyed(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    commit, resets = StateTopic.commit, [2]

    def commit_during_a_reset(topic: StateTopic, records: Mapping[bytes, bytes | None], *more: Any) -> None:
        commit(topic, records, *more)
        if resets and any(b"/" in key for key in records):
            t.operator_commits(resets.pop())

    t.send_result(acked=emitted[:5])
    monkeypatch.setattr(StateTopic, "commit", commit_during_a_reset)
    t.until(lambda: not resets)
    t.until(lambda: t.count("rewinds") == 1)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_an_offset_set_forward_skips_nothing(
    spout: Callable[..., SpoutTester], caplog: pytest.LogCaptureFixture
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[:2])
    t.until(lambda: t.committed() == 2)
    t.operator_commits(7)
    t.until(lambda: t.committed() == 2)
    assert any("from 2 to 7: ignored" in line for line in caplog.messages)
    t.send_result(acked=emitted[2:])
    t.until(lambda: t.committed() == 10)


@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
def test_an_offset_set_forward_while_stopped_skips_nothing(
    spout: Callable[..., SpoutTester], checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[:2])
    t.until(lambda: t.committed() == 2)
    t.driver.close()
    t.operator_commits(7)
    t.batch = t.batch if checkpoint == "kept" else None
    t.start()
    assert any("from 2 to 7: ignored" in line for line in caplog.messages)
    t.until(lambda: t.committed() == 2)
    assert t.next_batch() is None, "all is in flight"
    t.send_result(acked=emitted[2:])
    t.until(lambda: t.committed() == 10)


@pytest.mark.parametrize("is_allowed", [False, True])
def test_an_offset_set_after_the_state_is_lost_skips_nothing_unless_allowed(
    spout: Callable[..., SpoutTester], is_allowed: bool
) -> None:
    t = spout(records=10)
    t.send_result(acked=t.emitted(t.next_batch())[:2])
    t.until(lambda: t.committed() == 2)
    t.driver.close()
    t.lose_state()
    t.operator_commits(7)
    t.batch, t.more = None, {"allowSkip": str(is_allowed).lower()}
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == list(range(7 if is_allowed else 0, 10))


def stray_consumer(t: SpoutTester) -> Consumer:
    """Join the spout's group, as kafka-console-consumer --group does."""
    settings = {"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.in", "enable.auto.commit": False}
    stranger = make_consumer(settings)
    stranger.subscribe([f"{t.name}.source"])
    deadline = world.monotonic_s() + DEADLINE_S
    while not stranger.assignment():
        assert world.monotonic_s() < deadline
        stranger.poll(0.2)
    return stranger


@pytest.mark.promise("a stray consumer joins a spout's group")
@pytest.mark.real
def test_a_stray_consumer_in_the_group_stops_nothing_permanently_and_skips_nothing(
    spout: Callable[..., SpoutTester], caplog: pytest.LogCaptureFixture
) -> None:
    t = spout(records=10, max_pending=5)
    emitted = t.emitted(t.next_batch())
    stranger = stray_consumer(t)
    t.send_result(acked=emitted)
    t.until(lambda: any("is a member of group" in line for line in caplog.messages))
    assert t.next_batch() is None
    stranger.commit(offsets=[TopicPartition(f"{t.name}.source", 0, 8)], asynchronous=False)
    t.until(lambda: t.pending == 0)
    stranger.close()
    t.until(lambda: t.committed() == 5)
    rest = t.emitted(t.next_batch())
    assert [offset for offset, _ in rest] == [5, 6, 7, 8, 9]
    t.send_result(acked=rest)
    t.until(lambda: t.committed() == 10)


def test_a_driver_waits_at_its_start_until_a_stray_consumer_has_left(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10)
    t.next_batch()
    t.driver.close()
    stranger = stray_consumer(t)
    stranger.commit(offsets=[TopicPartition(f"{t.name}.source", 0, 10)], asynchronous=False)
    t.batch = None

    def leave() -> None:
        world.sleep(5.0)
        stranger.close()

    leaving = world.start_thread(leave, "stranger")
    t.start()
    leaving.join()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == list(range(10))


@pytest.mark.parametrize("untracked", [{"options": {"complete": "batch"}}, {"ackers": 0}], ids=str)
def test_a_rewind_during_a_batch_is_applied_where_records_are_done_with_their_batch(
    spout: Callable[..., SpoutTester], untracked: dict[str, object]
) -> None:
    t = spout(records=10, **untracked)
    t.next_batch(limit=5)
    t.next_batch(limit=5)
    assert t.committed() == 5
    t.operator_commits(2)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(2, 10))
    assert t.count("rewinds") == 1
    assert t.next_batch() is None
    t.until(lambda: t.committed() == 10)


def test_a_commit_does_not_overwrite_the_reset_of_a_partition_that_has_not_changed(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = spout(records=10, partitions=2)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 10)
    t.producer.produce(f"{t.name}.source", b"other", partition=1)
    t.producer.flush()
    t.send_result(acked=t.emitted(t.next_batch()), slot=1)
    store, resets = t.driver.commits._store, [4]

    def reset_after_the_look(*records: object) -> None:
        store(*records)
        if resets:
            t.operator_commits(resets.pop())

    assert t.batch is not None
    t.driver.written(t.batch)
    monkeypatch.setattr(t.driver.commits, "_store", reset_after_the_look)
    t.until(lambda: t.place(f"{t.name}.source", 1).offset == 1)
    t.until(lambda: t.count("rewinds") == 1)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [4, 5, 6, 7, 8, 9]
