"""The driver side of a spout on a real broker; the test plays Spark and the acker."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyroaring import BitMap64

from acktree.producers.claim import Claim, commit_claim, decode_claim, next_epoch
from acktree.producers.outside_commit import GroupInUse
from acktree.schemas.codec import Cause, Failure, Result, encode_result
from acktree.schemas.errors import AcktreeError, MissingTopic, UnknownTopology
from acktree.schemas.ids import generation_of, next_run, root_id
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology
from acktree.spark.batch import Batch
from acktree.spark.done_set import encode_metadata
from acktree.spark.group_offsets import ZombieDriver
from acktree.spark.options import BadOption, SourceOptions
from acktree.spark.source_topics import UnknownPartition
from acktree.spark.spout_driver import SpoutDriver

TOPOLOGY = """
name = "{name}"
ackers = {ackers}
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.out"]
tasks = {tasks}
max_pending = {max_pending}
max_attempts = 3
retry_initial_s = 1
[bolts.b]
reads = ["{name}.out"]
"""
DEADLINE_S = 30


class Spout:
    """A spout on its own topology, driven call by call; time passes only when the test says so."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        *,
        records: int,
        ackers: int = 2,
        max_pending: int = 100,
        tasks: int = 1,
        partitions: int = 1,
    ) -> None:
        self.bootstrap, self.name, self.now_s = bootstrap, name, 1000.0
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(f"{name}.source", partitions)])[f"{name}.source"].result()
        self.text = TOPOLOGY.format(name=name, ackers=ackers, max_pending=max_pending, tasks=tasks)
        apply_topology(bootstrap, parse_topology(self.text), {})
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.send(records)
        self.drivers: list[SpoutDriver] = []
        self.batch: Batch | None = None
        self.driver = self.start()

    def send(self, records: int) -> None:
        for number in range(records):
            self.producer.produce(
                f"{self.name}.source", f"record {number}", partition=0, headers=[("kept", b"yes")]
            )
        self.producer.flush()

    def start(self) -> SpoutDriver:
        """Start a driver as Spark would after a crash: with the last batch that it has logged."""
        options = SourceOptions.parse(
            {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name, "spout": "in"}
        )
        self.driver = SpoutDriver(options, monotonic=lambda: self.now_s, jitter=lambda: 0.0)
        self.drivers.append(self.driver)
        self.driver.open(self.batch and Batch.from_json(json.loads(json.dumps(self.batch.to_json()))))
        self.batch = self.batch or self.driver.position()
        return self.driver

    def next_batch(self, most: int | None = None) -> Batch | None:
        """Do what one call of latestOffset does."""
        assert self.batch is not None
        self.driver.written(self.batch)
        self.driver.service(0.0)
        batch = self.driver.next_batch(self.driver.topics.log_ends(), most)
        self.batch = batch or self.batch
        return batch

    def emitted(self, batch: Batch | None) -> list[tuple[int, int]]:
        """Return (offset, generation) of all that a batch reads."""
        if batch is None:
            return []
        fresh = [(o, generation_of(r.run, 0)) for r in batch.ranges for o in range(r.start, r.end)]
        return fresh + [(o, r.generation) for r in batch.replays for o in r.offsets]

    def tell(
        self, acked: list[tuple[int, int]] = (), failed: list[tuple[int, int, Cause]] = (), task: int = 0
    ) -> None:  # type: ignore[assignment]
        """Write one result record, as an acker would."""
        result = Result(
            0,
            np.array([root_id(0, generation, offset) for offset, generation in acked], np.uint64),
            [Failure(root_id(0, g, o), cause, "b-0", "because") for o, g, cause in failed],
        )
        self.producer.produce(f"{self.name}.spout-{task}", encode_result(result))
        self.producer.flush()

    def until(self, holds: Callable[[], bool]) -> None:
        """Serve the driver, a second of its clock a time, until something holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, self.driver._tasks[0]
            self.driver.service(0.1)
            self.now_s += 1.0

    def committed(self) -> int:
        return self.place(f"{self.name}.source").offset

    def result_position(self) -> int:
        return self.place(f"{self.name}.spout-0").offset

    def claim(self) -> Claim:
        place = self.place(f"{self.name}.spout-0")
        return decode_claim(place.metadata or "", place.offset)

    def write_claim(self, claim: Claim) -> None:
        """Commit a claim, as many starts later it would stand there."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        commit_claim(consumer, f"{self.name}.spout-0", claim, f"{self.name}.in", self.bootstrap)
        consumer.close()

    def place(self, topic: str) -> TopicPartition:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        (place,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
        consumer.close()
        return place

    def operator_commits(self, offset: int, metadata: str = "") -> None:
        """Do what kafka-consumer-groups --reset-offsets does."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        consumer.commit(
            offsets=[TopicPartition(f"{self.name}.source", 0, offset, metadata)], asynchronous=False
        )
        consumer.close()

    def count(self, name: str) -> int:
        return self.driver._tasks[0].counters[name]

    def close(self) -> None:
        for driver in self.drivers:
            try:
                driver.close()
            except AcktreeError:
                pass


@pytest.fixture
def spout(bootstrap: str, unique: str) -> Iterator[Callable[..., Spout]]:
    testers: list[Spout] = []

    def make(**arguments: Any) -> Spout:
        testers.append(Spout(bootstrap, unique, **arguments))
        return testers[-1]

    yield make
    for tester in testers:
        tester.close()


def test_a_record_is_committed_when_its_tree_is_done_and_not_before(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    assert [offset for offset, _ in emitted] == list(range(10))
    assert t.committed() == 0
    t.tell(acked=emitted[:4] + emitted[5:])
    t.until(lambda: t.committed() == 4)
    t.tell(acked=emitted[4:5])
    t.until(lambda: t.committed() == 10)
    assert t.result_position() == 2


def test_a_restart_does_not_emit_again_what_is_in_flight_or_done(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.tell(acked=[emitted[7], emitted[2]])
    t.until(lambda: t.count("completed") == 2)
    t.driver.settle()
    t.start()
    assert t.emitted(t.next_batch()) == []
    assert t.driver._tasks[0].pending == 8
    t.tell(acked=[pair for pair in emitted if pair[0] not in (2, 7)])
    t.until(lambda: t.committed() == 10)


def test_verdicts_given_while_no_driver_ran_are_taken_in(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.tell(acked=emitted)
    t.start()
    t.until(lambda: t.committed() == 10)


def test_without_a_checkpoint_it_goes_on_at_the_frontier_and_leaves_out_what_is_done(
    spout: Callable[..., Spout],
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.tell(acked=[emitted[0], emitted[1], emitted[5]])
    t.until(lambda: t.committed() == 2)
    t.batch = None
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [2, 3, 4, 6, 7, 8, 9]


def test_exactly_the_failed_record_is_replayed_after_its_back_off(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.tell(failed=[(*emitted[3], Cause.FAILED)])
    t.driver.service(5.0)
    assert t.count("failed") == 1
    assert t.next_batch() is None
    t.now_s += 1.01
    replay = t.emitted(t.next_batch())
    assert replay == [(3, emitted[3][1] + 1)]
    t.tell(acked=replay + [pair for pair in emitted if pair[0] != 3])
    t.until(lambda: t.committed() == 10)
    assert t.count("replayed") == 1


def test_a_failure_holds_the_result_position_until_its_replay_is_written(
    spout: Callable[..., Spout],
) -> None:
    t = spout(records=4)
    emitted = t.emitted(t.next_batch())
    t.tell(failed=[(*emitted[3], Cause.FAILED)])
    t.tell(acked=emitted[:3])
    t.until(lambda: t.committed() == 3)
    assert t.result_position() == 0
    t.start()
    t.until(lambda: t.count("failed") == 1)
    t.now_s += 2
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [3]
    t.next_batch()
    t.driver.settle()
    assert t.result_position() == 2


def test_replays_are_not_held_back_by_max_pending(spout: Callable[..., Spout]) -> None:
    t = spout(records=50, max_pending=10)
    emitted = t.emitted(t.next_batch())
    assert len(emitted) == 10
    assert t.next_batch() is None
    t.tell(failed=[(*pair, Cause.FAILED) for pair in emitted])
    t.until(lambda: t.count("failed") == 10)
    t.now_s += 5
    assert [offset for offset, _ in t.emitted(t.next_batch())] == list(range(10))


def test_a_limit_of_offsets_per_trigger_is_kept(spout: Callable[..., Spout]) -> None:
    t = spout(records=50)
    assert len(t.emitted(t.next_batch(most=7))) == 7


def test_after_max_attempts_the_record_is_a_dead_letter_and_done(spout: Callable[..., Spout]) -> None:
    t = spout(records=2)
    emitted = t.emitted(t.next_batch())
    t.tell(acked=emitted[1:])
    pair = emitted[0]
    for attempt in (1, 2, 3):
        t.tell(failed=[(*pair, Cause.FAILED)])
        t.until(lambda attempt=attempt: t.count("failed") == attempt)
        t.now_s += 100
        if attempt < 3:
            (pair,) = t.emitted(t.next_batch())
    t.until(lambda: t.committed() == 2)
    assert t.count("dead_lettered") == 1
    consumer = Consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.look"})
    consumer.assign([TopicPartition(f"{t.name}.dead-letter", 0, 0)])
    letter = consumer.poll(DEADLINE_S)
    consumer.close()
    assert letter is not None
    assert letter.value() == b"record 0"
    headers = dict(letter.headers() or [])
    assert headers["kept"] == b"yes"
    assert headers["acktree-origin"] == f"{t.name}.source/0/0".encode()
    assert (headers["acktree-attempts"], headers["acktree-reason"]) == (b"3", b"because")
    assert headers["kafka_dlt-original-offset"] == (0).to_bytes(8, "big")


def test_timeouts_while_nothing_is_acked_never_lead_to_a_dead_letter(spout: Callable[..., Spout]) -> None:
    t = spout(records=1)
    (pair,) = t.emitted(t.next_batch())
    for round_ in range(1, 7):
        t.tell(failed=[(*pair, Cause.TIMED_OUT)])
        t.until(lambda round_=round_: t.count("timed_out") == round_)
        t.now_s += 100
        (pair,) = t.emitted(t.next_batch())
    assert t.count("dead_lettered") == 0


def test_a_rewind_while_running_emits_the_range_again_and_old_acks_do_not_finish_it(
    spout: Callable[..., Spout],
) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.tell(acked=emitted[:8])
    t.until(lambda: t.committed() == 8)
    t.operator_commits(3)
    t.until(lambda: t.count("rewinds") == 1)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(3, 10))
    t.tell(acked=emitted)
    t.driver.service(5.0)
    assert t.driver._tasks[0].pending == 7
    t.tell(acked=again)
    t.until(lambda: t.committed() == 10)


def test_a_rewind_while_stopped_is_obeyed_at_the_start(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    t.tell(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 10)
    t.operator_commits(6)
    t.start()
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [6, 7, 8, 9]


def test_a_rewind_survives_a_crash_before_its_batch_is_written(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.tell(acked=emitted)
    t.until(lambda: t.committed() == 10)
    t.operator_commits(4)
    t.until(lambda: t.count("rewinds") == 1)
    t.start()
    t.tell(acked=emitted)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [4, 5, 6, 7, 8, 9]


def test_a_reset_forward_skips(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    t.next_batch(most=2)
    t.operator_commits(7)
    t.until(lambda: t.count("rewinds") == 1)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [7, 8, 9]


def test_a_driver_that_was_taken_over_stops(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    t.next_batch()
    old = t.driver
    t.start()
    t.now_s += 10
    with pytest.raises(ZombieDriver, match="newer driver"):
        old.service(0.0)


def test_two_hundred_starts_later_verdicts_still_count(spout: Callable[..., Spout]) -> None:
    """Runs go round after 255: an old floor must not come to lie above a new run."""
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.driver.close()
    for run in range(2, 260, 43):
        claim = t.claim()
        claim.run, claim.epoch = (run - 1) % 255 + 1, next_epoch(claim.epoch)
        t.write_claim(claim)
        t.start()
        assert t.driver._tasks[0].run == next_run(claim.run)
        t.driver.close()
    t.tell(acked=emitted)
    t.start()
    again = t.emitted(t.next_batch())
    t.tell(acked=again)
    t.until(lambda: t.committed() == 10)


def test_a_commit_of_a_lower_epoch_is_overwritten(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    t.tell(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 10)
    ours = t.place(f"{t.name}.source")
    topic_id = (ours.metadata or "").split("|")[2]
    stale, _ = encode_metadata(1, topic_id, 3, BitMap64())
    t.operator_commits(3, stale)
    t.until(lambda: t.committed() == 10)
    assert t.count("rewinds") == 0


def test_a_claim_that_was_deleted_is_made_anew_above_all_that_was(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    t.tell(acked=emitted[:4])
    t.until(lambda: t.committed() == 4)
    t.start()
    t.driver.close()
    admin = AdminClient({"bootstrap.servers": t.bootstrap})
    admin.delete_consumer_groups([f"{t.name}.in"])[f"{t.name}.in"].result()
    t.operator_commits(4)
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [4, 5, 6, 7, 8, 9]
    assert not {generation for _, generation in again} & {generation for _, generation in emitted}
    t.tell(acked=again)
    t.until(lambda: t.committed() == 10)


def test_a_consumer_in_our_group_is_a_clear_error(spout: Callable[..., Spout]) -> None:
    t = spout(records=10)
    emitted = t.emitted(t.next_batch())
    stranger = Consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.in"})
    stranger.subscribe([f"{t.name}.source"])
    deadline = time.monotonic() + DEADLINE_S
    while not stranger.assignment():
        assert time.monotonic() < deadline
        stranger.poll(0.2)
    t.tell(acked=emitted)
    with pytest.raises(GroupInUse, match="stop it"):
        t.until(lambda: False)
    stranger.close()


def test_with_no_ackers_a_record_is_done_when_its_batch_is(spout: Callable[..., Spout]) -> None:
    t = spout(records=10, ackers=0)
    assert len(t.emitted(t.next_batch())) == 10
    assert t.next_batch() is None
    t.until(lambda: t.committed() == 10)


def test_verdicts_for_a_task_that_was_taken_away_are_read_until_drained(
    bootstrap: str, unique: str, spout: Callable[..., Spout]
) -> None:
    t = spout(records=10, tasks=2, partitions=2)
    emitted = t.emitted(t.next_batch())
    text = t.text.replace("tasks = 2", "tasks = 1")
    apply_topology(bootstrap, parse_topology(text), {})
    t.start()
    t.tell(acked=emitted[:5], task=0)
    t.tell(acked=emitted[5:], task=1)
    t.until(lambda: t.committed() == 10)


def test_garbage_on_the_result_topic_is_set_aside(spout: Callable[..., Spout]) -> None:
    t = spout(records=3)
    emitted = t.emitted(t.next_batch())
    for garbage in (b"", b"hello", encode_result(Result(0))[:-1], b"\xc3\x01" + bytes(50)):
        t.producer.produce(f"{t.name}.spout-0", garbage)
    t.tell(acked=emitted)
    t.until(lambda: t.committed() == 3)
    assert t.count("set_aside") == 4


def test_what_is_not_there_is_said_in_one_sentence(bootstrap: str, spout: Callable[..., Spout]) -> None:
    t = spout(records=1)

    def start(**changed: str) -> None:
        given = {"kafka.bootstrap.servers": bootstrap, "topology": t.name, "spout": "in", **changed}
        SpoutDriver(SourceOptions.parse(given))

    with pytest.raises(UnknownTopology, match="acktree topology apply"):
        start(topology="nowhere")
    with pytest.raises(BadOption, match="it may be one of: in"):
        start(spout="out")
    with pytest.raises(BadOption, match="differs from the topology"):
        start(subscribe="other")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([f"{t.name}.source"])[f"{t.name}.source"].result()
    with pytest.raises((MissingTopic, UnknownPartition)):
        start()


@pytest.mark.parametrize(
    ("options", "told"),
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
def test_options_that_are_not_understood_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        SourceOptions.parse(options)
