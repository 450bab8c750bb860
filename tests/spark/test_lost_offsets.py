"""The offsets of a spout's group are gone, as Kafka forgets them where nobody commits: nothing is lost."""

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.producers.spouts.driver.group_offsets import ZombieDriver
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.outside_commit import RENEW_INTERVAL_S
from acktree.wire.control_records import Cause
from acktree.wire.state_records import encode_slot_state
from spark.spouts import DEADLINE_S, SpoutTester

pytestmark = pytest.mark.simulated

LATEST = {"startingOffsets": "latest"}


def delete_offsets(t: SpoutTester) -> None:
    """Do what the broker does once all offsets of a group have expired."""
    t.admin.delete_consumer_groups([f"{t.name}.in"])[f"{t.name}.in"].result()


def commit_result_position(t: SpoutTester, offset: int) -> None:
    consumer = make_consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.in"})
    consumer.commit(offsets=[TopicPartition(f"{t.name}.spout-0", 0, offset)], asynchronous=False)
    consumer.close()


def done(t: SpoutTester, records: int) -> None:
    """Emit all there is, have it acked, and log a batch that knows of it."""
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted)
    t.until(lambda: t.committed() == records)


def log_a_batch_more(t: SpoutTester, count: int) -> list[tuple[int, int]]:
    t.send(count)
    return t.emitted(t.next_batch())


def serve(driver: SpoutDriver) -> None:
    deadline_s = world.monotonic_s() + DEADLINE_S
    while world.monotonic_s() < deadline_s:
        driver.service(0.1)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.promise("a group's offsets, with a live driver … without one")
@pytest.mark.real
def test_a_driver_whose_offsets_have_expired_continues_from_its_state(
    spout: Callable[..., SpoutTester], starting: str
) -> None:
    t = spout(records=0, options={"startingOffsets": starting})
    t.send(10)
    done(t, 10)
    flying = log_a_batch_more(t, 3)
    t.driver.close()
    delete_offsets(t)
    t.send(2)
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [13, 14], "none lost, and what is in flight left out"
    t.send_result(acked=flying + again)
    t.until(lambda: t.committed() == 15)


@pytest.mark.parametrize("lost", ["state", "state and group"])
def test_a_checkpoint_proves_that_a_spout_without_its_state_is_not_new(
    spout: Callable[..., SpoutTester], lost: str
) -> None:
    t = spout(records=0, options=LATEST)
    log_a_batch_more(t, 4)
    t.driver.close()
    t.lose_state()
    if lost != "state":
        delete_offsets(t)
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [0, 1, 2, 3]


def test_acks_of_emissions_before_the_state_was_lost_do_not_count(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=6)
    old = t.emitted(t.next_batch())
    t.driver.close()
    t.lose_state()
    t.start()
    new = t.emitted(t.next_batch())
    assert [offset for offset, _ in new] == [0, 1, 2, 3, 4, 5]
    t.send_result(acked=old)
    t.send_result(acked=new[:3])
    t.until(lambda: t.committed() == 3)
    assert t.count("completed") == 3


def test_records_not_done_in_a_state_from_a_backup_are_emitted_again(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know which runs were used since."""
    t = spout(records=6)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[:2])
    t.until(lambda: t.committed() == 2)
    backup = t.states()
    assert backup.spout is not None
    t.start()
    since = log_a_batch_more(t, 3)
    t.send_result(acked=since[:1])
    t.until(lambda: t.count("completed") == 1)
    t.driver.close()
    for key, state in backup.slots.items():
        t.write_state(key.encode(), encode_slot_state(state))
    t.write_spout_state(backup.spout)
    monkeypatch.setattr("acktree.core.world.random_fraction", lambda: 0.5)  # it draws one run of 255
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(2, 9))
    assert not set(again) & {*emitted, *since}, "a root id that was used before"
    t.send_result(acked=[*emitted, *since])
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 9)
    assert t.count("completed") == 7


@pytest.mark.promise("a group's offsets, with a live driver")
@pytest.mark.real
def test_a_live_driver_commits_expired_offsets_again(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=5)
    done(t, 5)
    delete_offsets(t)
    assert t.committed() < 0
    t.until(lambda: t.committed() == 5)
    assert t.result_position() == 1


def test_an_idle_driver_commits_again_before_its_offsets_expire(spout: Callable[..., SpoutTester]) -> None:
    """Seen by a result position that somebody has set: nothing else has changed for the driver to commit."""
    t = spout(records=5)
    done(t, 5)
    t.driver.commit_and_report()
    commit_result_position(t, 0)
    t.now_s += 1
    t.serve(0.0)
    assert t.result_position() == 0, "nothing has changed"
    t.now_s += RENEW_INTERVAL_S
    t.serve(0.0)
    assert t.result_position() == 1


def test_without_a_checkpoint_unread_acks_are_applied_before_anything_is_emitted(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=50)
    emitted = t.emitted(t.next_batch())
    t.driver.close()
    t.send_result(acked=emitted[:20])
    t.send_result(acked=emitted[30:], failed=[(*emitted[25], Cause.FAILED)])
    t.batch = None
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(20, 30))
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 50)


@pytest.mark.real
def test_a_zombie_that_wakes_up_commits_nothing(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=5)
    done(t, 5)
    zombie = t.driver
    t.start()
    term = t.spout_state().term
    t.command((0, 3))
    with pytest.raises(ZombieDriver):
        serve(zombie)
    with pytest.raises(ZombieDriver):
        zombie.commit_and_report()
    assert t.spout_state().term == term
    assert t.committed() == 5


@pytest.mark.promise("the group's offsets and the checkpoint are both lost")
@pytest.mark.real
def test_without_offsets_and_checkpoint_only_the_last_batch_is_emitted_again(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=3)
    earlier = t.emitted(t.next_batch())
    t.send_result(acked=earlier[:1])
    t.until(lambda: t.committed() == 1)
    last = log_a_batch_more(t, 2)
    t.driver.close()
    delete_offsets(t)
    t.batch = None
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [3, 4]
    assert not set(again) & set(last), "a root id that was used before"
    t.send_result(acked=earlier[1:] + again)
    t.until(lambda: t.committed() == 5)


def test_without_state_offsets_and_checkpoint_no_earlier_ack_finishes_a_new_emission(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of the forgotten runs still come in: a tree of theirs was open when all was deleted."""
    t = spout(records=3)
    earlier = t.emitted(t.next_batch())
    t.send_result(acked=earlier[:1])
    t.until(lambda: t.committed() == 1)
    t.driver.close()
    delete_offsets(t)
    t.lose_state()
    t.batch = None
    monkeypatch.setattr("acktree.core.world.random_fraction", lambda: 0.5)  # it draws one run of 255
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [0, 1, 2]
    assert not set(again) & set(earlier), "a root id that was used before"
