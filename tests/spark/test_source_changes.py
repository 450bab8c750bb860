"""What happens to a source topic while and between drivers: growth is followed, loss is said."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic
from pyroaring import BitMap64

from acktree.core import world
from acktree.core.errors import BrokerRefused, MissingTopic
from acktree.core.kafka.clients import make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.plan import Plan
from acktree.core.topology.publish import apply_topology
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.producers.ledger.partitions.done_set import serialized
from acktree.producers.spouts.driver.sources import source_watch
from acktree.producers.spouts.driver.sources.log_bounds import DataLoss, OffsetOutOfRange
from acktree.producers.spouts.driver.sources.source_watch import CHECK_INTERVAL_S
from acktree.spark.driver.source_check import check_source
from acktree.spark.shared.options import SourceOptions
from acktree.spark.tasks.reading.read_task import read_offsets, read_tasks
from acktree.wire.control_records import Cause
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import generation_of
from acktree.wire.state_records import SEVERAL_TASKS, SlotState, encode_slot_state
from deadlines import ANSWER_S
from spark.spouts import DEADLINE_S, SpoutTester

pytestmark = pytest.mark.simulated

FORGIVING = {"failOnDataLoss": "false"}
SKIPPING = {"allowSkip": "true"}


def grow(t: SpoutTester, partitions: int) -> None:
    source = f"{t.name}.source"
    t.admin.create_partitions([NewPartitions(source, partitions)])[source].result()
    until(lambda: len(t.admin.list_topics(source, timeout=ANSWER_S).topics[source].partitions) == partitions)
    t.producer = make_producer({"bootstrap.servers": t.bootstrap})


def recreate(t: SpoutTester, partitions: int = 1) -> None:
    source = f"{t.name}.source"
    t.admin.delete_topics([source])[source].result()
    until(lambda: source not in t.admin.list_topics(timeout=ANSWER_S).topics)
    t.admin.create_topics([NewTopic(source, partitions)])[source].result()
    until(lambda: source in t.admin.list_topics(timeout=ANSWER_S).topics)


@pytest.fixture(autouse=True)
def _no_other_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one broker there is nothing to be patient for."""
    monkeypatch.setattr("acktree.producers.spouts.driver.sources.log_bounds.END_CHECK_INTERVAL_S", 0.05)


def remove_before(t: SpoutTester, offset: int) -> None:
    """Do what retention does."""
    place = TopicPartition(f"{t.name}.source", 0, offset)
    t.admin.delete_records([place])[place].result()


def until(holds: Callable[[], bool]) -> None:
    deadline = world.monotonic_s() + DEADLINE_S
    while not holds():
        assert world.monotonic_s() < deadline
        world.sleep(0.05)


def serve_until(t: SpoutTester, error: type[Exception], match: str) -> None:
    """Serve the driver until it stops with an error."""
    with pytest.raises(error, match=match):
        t.until(lambda: False)


def test_a_partition_that_is_added_is_found_published_and_read_from_its_beginning(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=3)
    first = t.emitted(t.next_batch())
    grow(t, 2)
    t.producer.produce(f"{t.name}.source", "early", partition=1)
    t.producer.flush()
    t.now_s += CHECK_INTERVAL_S + 1
    t.until(lambda: len(t.driver.topics.partitions) == 2)
    batch = t.next_batch()
    assert batch is not None
    assert [(r.partition, r.slot, r.start, r.end) for r in batch.ranges if r.start < r.end] == [(1, 1, 0, 1)]
    assert batch.version == t.driver.topology.version == 2
    assert [slot.partition for slot in t.driver.topology.slots] == [0, 1]
    t.send_result(acked=first)
    t.until(lambda: t.committed() == 3)
    assert t.place(f"{t.name}.source", 1).offset == 0


def test_a_newly_found_partition_reverts_no_version_of_an_operator(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = spout(records=1)
    grow(t, 2)
    operators = [f'{t.text}[bolts.second]\nreads = ["{t.name}.out"]\n']

    def publish_behind_an_operator(*arguments: Any, **more: Any) -> Plan:
        if operators:
            apply_topology(t.bootstrap, parse_topology(operators.pop()), {})
        return apply_topology(*arguments, **more)

    monkeypatch.setattr(source_watch, "apply_topology", publish_behind_an_operator)
    t.now_s += CHECK_INTERVAL_S + 1
    t.until(lambda: len(t.driver.topics.partitions) == 2)
    assert set(t.driver.topology.bolts) == {"b", "second"}
    batch = t.next_batch()
    assert batch is not None
    assert batch.version == t.driver.topology.version == 2


def test_a_partition_added_while_no_driver_ran_is_read_from_its_beginning(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=1, options={"startingOffsets": "latest"})
    assert t.next_batch() is None, "startingOffsets holds where the group has no offset"
    t.driver.close()
    grow(t, 2)
    t.producer.produce(f"{t.name}.source", "early", partition=1)
    t.producer.flush()
    check_source(t.options())
    t.start()
    batch = t.next_batch()
    assert batch is not None
    assert [(r.partition, r.start, r.end) for r in batch.ranges if r.start < r.end] == [(1, 0, 1)]


def test_what_was_in_flight_of_a_partition_that_is_read_again_later_is_emitted_again(
    spout: Callable[..., SpoutTester],
) -> None:
    """Its results were passed while nobody had it."""
    t = spout(records=1)
    t.driver.close()
    (key,) = t.states().slots
    away = encode_slot_state(SlotState(0, 3, 1, serialized(BitMap64()), task=0, term=1))
    t.write_state(key._replace(partition=1).encode(), away)
    t.start()
    t.admin.create_partitions([NewPartitions(f"{t.name}.source", 2)])[f"{t.name}.source"].result()
    until(lambda: len(t.admin.list_topics(timeout=ANSWER_S).topics[f"{t.name}.source"].partitions) == 2)
    producer = make_producer({"bootstrap.servers": t.bootstrap})  # the other one knows one partition
    for _ in range(3):
        producer.produce(f"{t.name}.source", b"away", partition=1)
    producer.flush()
    t.now_s += CHECK_INTERVAL_S + 1
    found: list[tuple[int, int]] = []

    def is_emitted() -> bool:
        batch = t.next_batch()
        found.extend((r.start, r.end) for r in (batch.ranges if batch else ()) if r.partition == 1)
        return (0, 3) in found

    until(is_emitted)


def test_tasks_that_are_added_live_are_known_and_their_results_read(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=4)
    emitted = t.emitted(t.next_batch())
    apply_topology(t.bootstrap, parse_topology(t.text.replace("tasks = 1", "tasks = 2")), {})
    t.until(lambda: t.driver.topology.version == 2)
    t.send_result(acked=emitted, task=1)
    t.until(lambda: t.committed() == 4)


def test_the_state_names_no_task_until_all_is_done_that_was_in_flight_when_the_task_changed(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0, partitions=2)

    def emit() -> list[tuple[int, int]]:
        t.producer.produce(f"{t.name}.source", b"x", partition=1)
        t.producer.flush()
        emitted: list[tuple[int, int]] = []
        t.until(lambda: bool(emitted) or emitted.extend(t.emitted(t.next_batch())))
        return emitted

    def named() -> int:
        t.until(lambda: True)
        return next(state.task for key, state in t.states().slots.items() if key.partition == 1)

    before = emit()
    assert named() == 0
    apply_topology(t.bootstrap, parse_topology(t.text.replace("tasks = 1", "tasks = 2")), {})
    t.until(lambda: t.driver.topology.version == 2)
    assert named() == SEVERAL_TASKS
    t.start()
    after = emit()
    assert named() == SEVERAL_TASKS
    t.send_result(acked=after, task=1, slot=1)
    t.send_result(acked=before, task=0, slot=1)
    t.until(lambda: t.driver.tasks[1].pending + t.driver.tasks[0].pending == 0)
    assert named() == 1


def test_limits_of_a_newer_version_apply_to_a_live_driver(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=1)
    emitted = t.emitted(t.next_batch())
    text = t.text.replace("max_attempts = 3", "max_attempts = 4")
    apply_topology(t.bootstrap, parse_topology(text), {})
    t.until(lambda: t.driver.topology.version == 2)
    for attempt in range(1, 5):
        assert t.count("dead_lettered") == 0
        t.send_result(failed=[(*pair, Cause.FAILED) for pair in emitted])
        t.until(lambda attempt=attempt: t.count("failed") == attempt)
        t.now_s += 100
        emitted = t.emitted(t.next_batch())
    assert (t.count("dead_lettered"), emitted) == (1, [])


def test_a_recreated_topic_stops_a_live_driver_with_a_clear_error(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=3)
    t.next_batch()
    recreate(t)
    t.now_s += CHECK_INTERVAL_S + 1
    serve_until(t, DataLoss, "recreated.*failOnDataLoss=false")


def test_a_deleted_topic_stops_a_live_driver_with_a_clear_error(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=3)
    t.next_batch()
    t.admin.delete_topics([f"{t.name}.source"])[f"{t.name}.source"].result()
    t.now_s += CHECK_INTERVAL_S + 1
    serve_until(t, MissingTopic, "if it was deleted, its records that were not done are lost")


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_recreated_topic_is_refused_at_the_start_even_if_it_was_published_again(
    spout: Callable[..., SpoutTester], partitions: int
) -> None:
    """With fewer partitions than before, too: that is how a partition count shrinks."""
    t = spout(records=5, partitions=2)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 5)
    t.driver.close()
    recreate(t, partitions)
    with pytest.raises(DataLoss, match="recreated"):
        check_source(t.options())
    t.apply()
    t.batch = None
    with pytest.raises(DataLoss, match=r"recreated.*failOnDataLoss=false"):
        t.start()
    t.send(2)
    t.more = FORGIVING
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [0, 1]
    ids = {source.topic_id for source in t.driver.topics.partitions}
    assert {key.topic_id for key in t.states().slots} == ids, "what is gone takes no room in the state"


@pytest.mark.promise("a source topic is deleted and created again")
@pytest.mark.real
def test_a_recreated_topic_with_fewer_records_is_noticed_at_the_next_trigger(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=5)
    t.next_batch()
    recreate(t)
    t.send(2)
    with pytest.raises(DataLoss, match=r"recreated.*failOnDataLoss=false"):
        until(lambda: bool(t.next_batch()))


def test_a_shorter_recreated_topic_is_read_from_its_beginning_if_loss_is_allowed(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=5, options=FORGIVING)
    old = t.emitted(t.next_batch())
    t.send_result(acked=old[:3])
    t.until(lambda: t.count("completed") == 3)
    recreate(t)
    t.send(2)
    t.driver.commits.commit()
    assert t.committed() == 3, "a commit of the topic's former life"
    until(lambda: t.next_batch() is not None)
    assert [offset for offset, _ in t.emitted(t.batch)] == [0, 1]
    assert t.count("lost") == 2
    t.send_result(acked=old)
    t.send_result(acked=t.emitted(t.batch), slot=1)
    t.until(lambda: t.committed() == 2)


def test_a_deleted_topic_is_an_error_where_its_end_is_read(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=3)
    t.next_batch()
    t.admin.delete_topics([f"{t.name}.source"])[f"{t.name}.source"].result()
    with pytest.raises(MissingTopic, match="if it was deleted, its records that were not done are lost"):
        until(lambda: bool(t.next_batch()))


def test_a_smaller_partition_count_is_an_error_at_the_next_trigger_of_a_live_driver(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=3, partitions=2)
    t.next_batch()
    recreate(t)
    t.send(5)
    with pytest.raises(DataLoss, match=r"recreated.*failOnDataLoss=false"):
        until(lambda: bool(t.next_batch()))
    with suppress(BrokerRefused):  # a partition that it would commit is gone
        t.driver.close()
    t.batch, t.more = None, FORGIVING
    t.apply()
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == list(range(5))


def test_an_expired_next_offset_is_noticed_before_it_is_read(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10, max_pending=4)
    t.next_batch()
    remove_before(t, 4)
    t.now_s += CHECK_INTERVAL_S + 1
    assert t.next_batch() is None, "what is gone was read"
    remove_before(t, 6)
    t.now_s += CHECK_INTERVAL_S + 1
    serve_until(t, DataLoss, r"begins at offset 6, but group .* is at 4.*failOnDataLoss=false")
    with pytest.raises(DataLoss, match="begins at offset 6"):
        t.start()
    t.more = FORGIVING
    t.start()
    assert t.pending == 4


def test_an_expired_record_that_is_out_of_attempts_is_not_dropped_silently(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=3, max_attempts=1)
    (first, *_) = t.emitted(t.next_batch())
    remove_before(t, 2)
    t.send_result(failed=[(*first, Cause.FAILED)])
    text = r"/0/0 is out of attempts, but the topic begins at offset 2.*failOnDataLoss=false"
    serve_until(t, DataLoss, text)
    t.more = FORGIVING
    t.start()
    t.until(lambda: t.committed() == 1)
    assert (t.count("lost"), t.count("dead_lettered")) == (1, 0)


def read_alone(
    t: SpoutTester, batch: PlannedBatch, monkeypatch: pytest.MonkeyPatch, **more: str
) -> list[int]:
    """Return the offsets that the only task of a batch reads, outside of Spark."""
    for call in ("begin_handoff", "add_to_handoff"):
        monkeypatch.setattr(
            f"acktree.spark.tasks.reading.read_task.{call}", lambda *_: None
        )  # only inside of a Spark task
    (task,) = read_tasks(t.options(**more), t.driver.topology, batch)
    return [offset for rows in read_offsets(task) for offset in rows.column("offset").to_pylist()]


@pytest.mark.parametrize("offset", [4, 7])
def test_a_batch_of_skipped_records_ends_without_those_that_are_gone(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Spark runs the batch that it has logged again; what the group's offset has passed is not lost."""
    t = spout(records=10, options=SKIPPING)
    batch = t.next_batch()
    assert batch is not None
    t.operator_commits(offset)
    t.until(lambda: t.committed() == offset)
    remove_before(t, 4)
    assert read_alone(t, batch, monkeypatch) == [4, 5, 6, 7, 8, 9]
    remove_before(t, 8)
    with pytest.raises(OffsetOutOfRange, match=r"no longer holds offsets 0 to 7, .*; it holds 8 to 9"):
        read_alone(t, batch, monkeypatch)


@pytest.mark.parametrize(("at_once", "there"), [(10, [0, 1]), (5, [])])
def test_a_batch_whose_topic_was_recreated_meanwhile_ends_if_loss_is_allowed(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch, at_once: int, there: list[int]
) -> None:
    """Spark reads the batch that it has logged before anything else, again and again until it ends."""
    monkeypatch.setattr("acktree.spark.tasks.reading.read_range.STALL_S", 1.0)
    t = spout(records=10)
    batch = t.next_batch(limit=at_once)
    batch = t.next_batch(limit=at_once) or batch
    assert batch is not None
    recreate(t)
    t.send(2)
    with pytest.raises(OffsetOutOfRange, match=r"offsets \d to 9, .*; it holds 0 to 1\. .*recreated"):
        read_alone(t, batch, monkeypatch)
    assert read_alone(t, batch, monkeypatch, **FORGIVING) == there


@pytest.mark.promise("retention removes records before they were read")
@pytest.mark.real
def test_expired_records_are_an_error_or_counted_as_done(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = spout(records=10)
    batch = t.next_batch(limit=6)
    assert batch is not None
    remove_before(t, 4)
    message = r"no longer holds offsets 0 to 3, .*; it holds 4 to 9\. .*failOnDataLoss=false"
    with pytest.raises(OffsetOutOfRange, match=message):
        read_alone(t, batch, monkeypatch)
    assert read_alone(t, batch, monkeypatch, **FORGIVING) == [4, 5]
    t.until(lambda: t.committed() == 4)
    assert t.count("lost") == 4


def test_an_offset_beyond_the_end_of_the_topic_is_an_error_or_reset_to_the_end(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10, options=SKIPPING)
    t.driver.close()
    t.batch = None
    t.operator_commits(50)
    with pytest.raises(DataLoss, match=r"ends at offset 10, but group .* is at 50"):
        t.start()
    t.more = FORGIVING | SKIPPING
    t.start()
    t.send(1)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [10]


def test_an_offset_set_beyond_the_end_while_running_is_an_error(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10, options=SKIPPING)
    t.next_batch()
    t.operator_commits(50)
    with pytest.raises(DataLoss, match=r"ends at offset 10, but group .* is at 50"):
        t.until(lambda: bool(t.next_batch()))


def test_acks_from_before_a_live_drivers_reset_to_the_end_finish_nothing_beyond_it(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10, options=FORGIVING | SKIPPING)
    (_, generation), *_ = t.emitted(t.next_batch())
    t.operator_commits(12)
    t.until(lambda: [stands.end for stands in t.driver.position().ranges] == [12])
    assert t.next_batch() is None
    t.send_result(acked=[(10, generation), (11, generation)])
    t.send(2)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [10, 11]
    t.until(
        lambda: t.driver.commits.positions[0].read == 1
    )  # read; it is committed now or with the acks below
    assert t.pending == 2
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 12 and t.result_position() == 2)


@pytest.mark.parametrize("frontier", [4, 10])
def test_a_truncated_log_is_read_from_its_end_or_the_frontier_if_loss_is_allowed(
    spout: Callable[..., SpoutTester], frontier: int
) -> None:
    """What was emitted behind the end has gone; acks of it say nothing of what is written there later."""
    t = spout(records=10)
    t.next_batch()
    run = t.driver.tasks[0].slots[0].run
    old = [(offset, generation_of(run, 0)) for offset in range(15)]
    t.send_result(acked=old[:frontier])
    t.until(lambda: t.committed() == frontier)
    t.driver.tasks[0].slots[0].emit(15, 9, t.now_s)
    t.driver.close()
    t.more = FORGIVING
    t.start()
    assert t.count("lost") == 5
    t.send(4)
    t.send_result(acked=old)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(frontier, 14))
    t.until(lambda: t.driver.all_done({}))
    assert t.pending == 14 - frontier
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 14)


def test_a_commit_with_foreign_metadata_counts_as_an_operators(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    t.driver.close()
    t.batch, t.more = None, SKIPPING
    t.operator_commits(7, "1|5|not ours|Rxx|00000000")
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [7, 8, 9]


def test_fail_on_data_loss_must_be_true_or_false(spout: Callable[..., SpoutTester]) -> None:
    with pytest.raises(AcktreeError, match="failOnDataLoss='maybe': must be true or false"):
        SourceOptions.parse(
            {"kafka.bootstrap.servers": "x", "topology": "t", "spout": "s", "failOnDataLoss": "maybe"}
        )


@pytest.mark.virtual
@pytest.mark.parametrize("options", [{}, FORGIVING])
def test_a_source_partition_without_a_leader_has_lost_nothing(
    spout: Callable[..., SpoutTester], simulation, options: dict[str, str]
) -> None:
    """What is answered for it is not an end below all that was emitted."""
    t = spout(records=3, options=options)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 3)
    simulation.cluster.leaderless = {f"{t.name}.source"}
    assert t.driver.next_batch(t.driver.log_ends(), None) is None
    simulation.cluster.leaderless = set()
    assert t.count("lost") == 0
    t.send(1)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [3]
