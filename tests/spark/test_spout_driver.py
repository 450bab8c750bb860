"""The driver side of a spout on a real broker; the test plays Spark and the acker."""

from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from acktree.core import world
from acktree.core.errors import MissingTopic, UnknownTopology
from acktree.core.kafka.clients import make_admin, make_consumer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import Registry
from acktree.producers.spouts.driver.group_offsets import ZombieDriver
from acktree.producers.spouts.driver.sources.source_topics import UnknownPartition
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.spark.shared.options import SourceOptions
from acktree.wire.codec import encode_result
from acktree.wire.control_records import NEVER, Cause, Result
from acktree.wire.ids import MAX_RUN, generation_of, next_run
from acktree.wire.state_records import OffsetSeal, encode_slot_state
from spark.spouts import DEADLINE_S, SpoutTester

pytestmark = pytest.mark.simulated


def test_a_record_is_committed_when_its_tree_is_done_and_not_before(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    assert [offset for offset, _ in emitted] == list(range(10))
    assert t.committed() == 0
    t.send_result(acked=emitted[:4] + emitted[5:])
    t.until(lambda: t.committed() == 4)
    t.send_result(acked=emitted[4:5])
    t.until(lambda: t.committed() == 10)
    assert t.result_position() == 2


def test_a_restart_emits_nothing_again_that_is_in_flight_or_done(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=[emitted[7], emitted[2]])
    t.until(lambda: t.count("completed") == 2)
    t.driver.commit_and_report()
    t.start()
    assert t.emitted(t.next_batch()) == []
    assert t.pending == 8
    t.send_result(acked=[pair for pair in emitted if pair[0] not in (2, 7)])
    t.until(lambda: t.committed() == 10)


def test_results_written_while_no_driver_ran_are_applied(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted)
    t.start()
    t.until(lambda: t.committed() == 10)


@pytest.mark.promise("Spark's checkpoint")
@pytest.mark.real
def test_without_a_checkpoint_nothing_in_flight_or_done_is_emitted_again(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=[emitted[0], emitted[1], emitted[5]])
    t.until(lambda: t.committed() == 2)
    t.batch = None
    t.start()
    assert t.next_batch() is None
    t.send_result(acked=[pair for pair in emitted if pair[0] not in (0, 1, 5)])
    t.until(lambda: t.committed() == 10)


def test_exactly_the_failed_record_is_replayed_after_its_back_off(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(failed=[(*emitted[3], Cause.FAILED)])
    t.serve(5.0)
    assert t.count("failed") == 1
    assert t.next_batch() is None
    t.now_s += 1.01
    replay = t.emitted(t.next_batch())
    assert replay == [(3, emitted[3][1] + 1)]
    t.send_result(acked=replay + [pair for pair in emitted if pair[0] != 3])
    t.until(lambda: t.committed() == 10)
    assert t.count("replayed") == 1


def test_a_failure_is_replayed_by_a_driver_that_has_not_read_it(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=4)
    emitted = t.emitted(t.next_batch())
    t.send_result(failed=[(*emitted[3], Cause.FAILED)])
    t.send_result(acked=emitted[:3])
    t.until(lambda: t.committed() == 3)
    assert t.result_position() == 2
    t.start()
    t.until(lambda: True)
    t.now_s += 2
    assert t.emitted(t.next_batch()) == [(3, generation_of(t.driver.tasks[0].slots[0].run, 1))]


def test_replays_are_not_held_back_by_max_pending(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=50, max_pending=10)
    emitted = t.emitted(t.next_batch())
    assert len(emitted) == 10
    assert t.next_batch() is None
    t.send_result(failed=[(*pair, Cause.FAILED) for pair in emitted])
    t.until(lambda: t.count("failed") == 10)
    t.now_s += 5
    assert [offset for offset, _ in t.emitted(t.next_batch())] == list(range(10))


def test_the_limit_of_offsets_per_trigger_is_respected(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=50)
    assert len(t.emitted(t.next_batch(limit=7))) == 7


def test_after_max_attempts_the_record_is_a_dead_letter_and_done(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=2)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[1:])
    pair = emitted[0]
    for attempt in (1, 2, 3):
        t.send_result(failed=[(*pair, Cause.FAILED)])
        t.until(lambda attempt=attempt: t.count("failed") == attempt)
        t.now_s += 100
        if attempt < 3:
            (pair,) = t.emitted(t.next_batch())
    t.until(lambda: t.committed() == 2)
    assert t.count("dead_lettered") == 1
    consumer = make_consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.look"})
    consumer.assign([TopicPartition(f"{t.name}.dead-letter", 0, 0)])
    dead_letter = consumer.poll(DEADLINE_S)
    consumer.close()
    assert dead_letter is not None
    assert dead_letter.value() == b"record 0"
    headers = dict(dead_letter.headers() or [])
    assert headers["kept"] == b"yes"
    assert headers["acktree-origin"] == f"{t.name}.source/0/0".encode()
    assert (headers["acktree-attempts"], headers["acktree-reason"]) == (b"3", b"because")
    assert headers["kafka_dlt-original-offset"] == (0).to_bytes(8, "big")
    assert headers["kafka_dlt-original-timestamp-type"] == b"CreateTime"
    first_ms, last_ms = int(headers["acktree-first-time-ms"]), int(headers["acktree-last-time-ms"])
    assert last_ms - first_ms >= 200_000, "of the driver's clock, which the test moves"


def test_a_rejection_makes_a_dead_letter_even_if_the_driver_dies_before_reading_it(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=2)
    emitted = t.emitted(t.next_batch())
    t.send_result(failed=[(*emitted[0], Cause.FAILED)], retry_after_ms=NEVER)
    t.start()
    t.until(lambda: t.committed() == 1)
    assert (t.count("rejected"), t.count("dead_lettered"), t.count("failed")) == (1, 1, 1)
    assert t.emitted(t.next_batch()) == []
    t.driver.commit_and_report()
    assert t.result_position() == 1
    consumer = make_consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.look"})
    consumer.assign([TopicPartition(f"{t.name}.dead-letter", 0, 0)])
    (dead_letter,) = consumer.consume(1, DEADLINE_S)
    consumer.close()
    headers = dict(dead_letter.headers() or [])
    names = ("acktree-attempts", "acktree-cause", "acktree-task", "acktree-reason")
    assert [headers[name] for name in names] == [b"1", b"REJECTED", b"b-0", b"because"]
    assert headers["kafka_dlt-exception-fqcn"] == b"acktree.REJECTED"


def test_a_delay_survives_the_death_of_its_driver(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=2)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[1:])
    t.send_result(failed=[(*emitted[0], Cause.FAILED)], retry_after_ms=3_600_000)
    t.until(lambda: t.count("failed") == 1)
    t.driver.commit_and_report()
    t.start()
    t.until(lambda: True)
    t.now_s += 3_000
    assert t.emitted(t.next_batch()) == []
    t.now_s += 700
    assert t.emitted(t.next_batch()) == [(0, generation_of(t.driver.tasks[0].slots[0].run, 1))]


def test_timeouts_while_nothing_is_acked_never_lead_to_a_dead_letter(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=1)
    (pair,) = t.emitted(t.next_batch())
    for round_ in range(1, 7):
        t.send_result(failed=[(*pair, Cause.TIMED_OUT)])
        t.until(lambda round_=round_: t.count("timed_out") == round_)
        t.now_s += 100
        (pair,) = t.emitted(t.next_batch())
    assert t.count("dead_lettered") == 0


@pytest.mark.slow
def test_attempts_survive_any_number_of_restarts_and_timeouts_that_do_not_count(
    spout: Callable[..., SpoutTester],
) -> None:
    """The generation holds four bits of the emissions; the batch says how many of them counted."""
    t = spout(records=2, max_attempts=19)
    emitted = t.emitted(t.next_batch())
    pair = emitted[0]
    for _ in range(3):  # nothing is acked: these do not count
        t.send_result(failed=[(*pair, Cause.TIMED_OUT)])
        t.until(lambda: t.count("timed_out") == 1)
        t.now_s += 100
        (pair,) = t.emitted(t.next_batch())
        t.start()
    for attempt in range(1, 20):
        assert t.count("dead_lettered") == 0, attempt
        t.send_result(failed=[(*pair, Cause.FAILED)])
        t.until(lambda: t.count("failed") == 1)
        if attempt == 19:
            break
        t.now_s += 100
        (pair,) = t.emitted(t.next_batch())
        t.send(1)
        t.next_batch()  # the next batch no longer holds the replay itself
        t.start()
    assert t.count("dead_lettered") == 1


def test_a_rewind_while_running_emits_the_range_again_and_old_acks_do_not_finish_it(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[:8])
    t.until(lambda: t.committed() == 8)
    t.operator_commits(3)
    t.until(lambda: t.count("rewinds") == 1)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(3, 10))
    t.send_result(acked=emitted)
    t.serve(5.0)
    assert t.pending == 7
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)


def test_a_rewind_while_stopped_is_applied_at_the_start(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 10)
    t.operator_commits(6)
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [6, 7, 8, 9]


def test_a_rewind_survives_a_crash_before_its_batch_is_written(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted)
    t.until(lambda: t.committed() == 10)
    t.operator_commits(4)
    t.until(lambda: t.count("rewinds") == 1)
    t.start()
    t.send_result(acked=emitted)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [4, 5, 6, 7, 8, 9]


def test_a_fenced_driver_stops(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    t.next_batch()
    old = t.driver
    t.start()
    t.now_s += 10
    with pytest.raises(ZombieDriver, match="newer driver"):
        old.service(0.0)


@pytest.mark.promise("the Spark driver … a hundred times during one record")
@pytest.mark.real
def test_results_still_count_two_hundred_starts_later(spout: Callable[..., SpoutTester]) -> None:
    """Runs go round after 255: an old floor must not come to lie above a new run."""
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.driver.close()
    for _ in range(13):
        for key, slot in t.states().slots.items():
            run = (slot.run + 19) % MAX_RUN + 1
            t.write_state(key.encode(), encode_slot_state(slot._replace(run=run)))
            t.start()
            assert t.driver.tasks[0].slots[0].run == next_run(run)
            t.driver.close()
    t.send_result(acked=emitted)
    t.start()
    again = t.emitted(t.next_batch())
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)


def test_a_commit_of_a_lower_term_is_overwritten(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 10)
    ours = t.place(f"{t.name}.source")
    topic_id = (ours.metadata or "").split("|")[2]
    t.operator_commits(3, OffsetSeal(1, topic_id).text(3))
    t.until(lambda: t.committed() == 10)
    assert t.count("rewinds") == 0


def test_a_lost_state_begins_again_at_the_offsets_of_the_group(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[:4])
    t.until(lambda: t.committed() == 4)
    term = t.spout_state().term
    t.driver.close()
    t.lose_state()
    t.start()
    assert t.spout_state().term > term
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [4, 5, 6, 7, 8, 9]
    assert not {generation for _, generation in again} & {generation for _, generation in emitted}
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)


def test_a_state_topic_that_is_missing_is_an_error_that_says_how_to_make_it(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=1)
    t.driver.close()
    t.delete_state()
    with pytest.raises(MissingTopic, match=r"holds the state of the spout.*acktree topology apply"):
        t.start()


def test_with_no_ackers_a_record_is_done_when_its_batch_is(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=10, ackers=0)
    assert len(t.emitted(t.next_batch())) == 10
    assert t.next_batch() is None
    t.until(lambda: t.committed() == 10)


def test_results_of_a_removed_task_are_read_until_drained(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10, tasks=2, partitions=2)
    emitted = t.emitted(t.next_batch())
    text = t.text.replace("tasks = 2", "tasks = 1")
    apply_topology(t.bootstrap, parse_topology(text), {})
    t.start()
    t.send_result(acked=emitted[:5], task=0)
    t.send_result(acked=emitted[5:], task=1)
    t.until(lambda: t.committed() == 10)


def test_invalid_records_on_the_result_topic_are_rejected(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=3)
    emitted = t.emitted(t.next_batch())
    for value in (b"", b"hello", encode_result(Result(0))[:-1], b"\xc3\x01" + bytes(50)):
        t.producer.produce(f"{t.name}.spout-0", value)
    t.send_result(acked=emitted)
    t.until(lambda: t.committed() == 3)
    assert t.count("invalid") == 4


def test_a_missing_topology_or_topic_is_reported_in_one_sentence(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=1)

    def start(**changed: str) -> None:
        given = {"kafka.bootstrap.servers": t.bootstrap, "topology": t.name, "spout": "in", **changed}
        SpoutDriver(SourceOptions.parse(given))

    with pytest.raises(UnknownTopology, match="acktree topology apply"):
        start(topology="nowhere")
    with pytest.raises(BadOption, match="it must be one of: in"):
        start(spout="out")
    with pytest.raises(BadOption, match="differs from the topology"):
        start(subscribe="other")
    admin = make_admin(t.bootstrap, {})
    admin.delete_topics([f"{t.name}.source"])[f"{t.name}.source"].result()
    with pytest.raises((MissingTopic, UnknownPartition)):
        start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'topology' is missing"),
        ({"topology": "t"}, "either option 'spout' or option 'bolt'"),
        ({"topology": "t", "spout": "s"}, "bootstrap.servers"),
        ({"topology": "t", "spout": "s", "kafka.bootstrap.servers": "x", "sbscribe": "a"}, "unknown option"),
        (
            {"topology": "t", "spout": "s", "kafka.bootstrap.servers": "x", "startingOffsets": "7"},
            "earliest or latest",
        ),
        (
            {"topology": "t", "spout": "s", "kafka.bootstrap.servers": "x", "maxOffsetsPerTrigger": "0"},
            "whole number",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        SourceOptions.parse(options)


def test_a_driver_that_may_not_read_the_registry_any_more_reports_it(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = spout(records=1)
    monkeypatch.setattr(Registry, "refresh", lambda self: setattr(self, "refused", "may not be read"))
    t.serve(0.0)
    t.driver.commit_and_report()
    consumer = make_consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.stats"})
    consumer.assign([TopicPartition(f"{t.name}.stats", 0, OFFSET_BEGINNING)])
    deadline = world.monotonic_s() + DEADLINE_S
    while b"may not be read" not in (((message := consumer.poll(0.2)) and message.value()) or b""):
        assert world.monotonic_s() < deadline
    consumer.close()
