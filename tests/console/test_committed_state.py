"""Whether a record above its group's offset is done: only a state that was read to its end says so."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyroaring import BitMap64

from acktree.console.view.cluster import Cluster, Place
from acktree.console.view.records.trace import find_trace, target_of_record
from acktree.core import world
from acktree.core.errors import NotAuthorized
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.topology.registry import read_history
from acktree.wire.state_records import OffsetSeal, SlotKey, SlotState, encode_slot_state
from console.dead_letter_topology import WAIT_S, DeadLetterTopology

pytestmark = pytest.mark.simulated
DONE, OPEN, FRONTIER, COMMITTED = 8, 9, 4, 3
"""Offsets of the source partition by what its state says; the group is behind."""


class StateWriter:
    """Writes what the driver of the topology's spout has committed."""

    def __init__(self, topology: DeadLetterTopology) -> None:
        self.topology = topology
        latest = read_history(topology.bootstrap, topology.name, {}).latest
        self.slot, self.topic = latest.slots[0], latest.state_topic("lines")
        self.group = latest.group_of("lines")

    def write_state(self, done: list[int], frontier: int = FRONTIER, topic_id: str = "") -> None:
        state = SlotState(frontier, 10, 1, BitMap64(done).serialize())
        self.write(encode_slot_state(state), topic_id)

    def write(self, value: bytes | None, topic_id: str = "") -> None:
        key = SlotKey(self.slot.topic, self.slot.partition, topic_id or self.slot.topic_id).encode()
        producer = make_producer({"bootstrap.servers": self.topology.bootstrap})
        producer.produce(self.topic, value, key, 0)
        assert producer.flush(WAIT_S) == 0

    def commit(self, offset: int = COMMITTED, is_ours: bool = True) -> None:
        metadata = OffsetSeal(1, self.slot.topic_id).text(offset) if is_ours else ""
        consumer = make_consumer({"bootstrap.servers": self.topology.bootstrap, "group.id": self.group})
        place = TopicPartition(self.slot.topic, self.slot.partition, offset, metadata=metadata)
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    def trace(self, offset: int) -> Any:
        done = self.topology.acktree("trace", self.slot.topic, "0", str(offset), "--format", "json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def states(self, *offsets: int) -> list[str]:
        return [self.trace(offset)["state"] for offset in offsets]


@pytest.fixture
def spout(topology: DeadLetterTopology) -> Callable[[], StateWriter]:
    return lambda: StateWriter(topology)


def test_records_done_in_the_state_are_done_before_the_group_shows_it(spout: Callable[[], StateWriter]):
    made = spout()
    made.commit()
    made.write_state([DONE])
    assert made.states(2, 3, DONE, OPEN) == ["done", "done", "done", "not emitted"]
    assert made.trace(DONE)["frontier"] == COMMITTED


def test_only_the_newest_state_of_the_partition_itself_counts(spout: Callable[[], StateWriter]):
    made = spout()
    made.commit()
    made.write_state([DONE, OPEN])
    made.write_state([DONE])
    made.write_state([OPEN], topic_id="AAAAAAAAAAAAAAAAAAAAAA")
    assert made.states(DONE, OPEN) == ["done", "not emitted"]
    made.write(None)
    assert made.states(DONE) == ["not emitted"]


def test_expired_offsets_of_the_group_say_nothing(spout: Callable[[], StateWriter]):
    made = spout()
    made.write_state([DONE])
    assert made.states(3, DONE, OPEN) == ["done", "done", "not emitted"]


def test_a_record_that_is_gone_is_not_done_because_the_group_has_passed_it(spout: Callable[[], StateWriter]):
    made = spout()
    made.commit()
    admin = make_admin(made.topology.bootstrap, {})
    for future in admin.delete_records([TopicPartition(made.slot.topic, 0, 2)]).values():
        world.wait_for(future, WAIT_S)
    assert made.states(1, 2) == ["expired", "done"]
    assert (
        f"{made.slot.topic}/0 begins at offset 2: nothing that was found says whether the record was "
        "executed before it was removed; the spout counts it as done"
    ) in made.trace(1)["notes"]


def test_after_an_operators_commit_the_state_is_outdated(spout: Callable[[], StateWriter]):
    made = spout()
    made.write_state([DONE])
    made.commit(is_ours=False)
    assert made.states(2, 3, DONE) == ["done", "not emitted", "not emitted"]


@pytest.mark.parametrize(
    "value",
    [b"", b"something else", encode_slot_state(SlotState(FRONTIER, 10, 1, b"no bitmap"))],
    ids=["empty", "foreign", "a damaged bitmap"],
)
def test_nothing_is_known_from_an_unreadable_state(spout: Callable[[], StateWriter], value: bytes):
    made = spout()
    made.commit()
    made.write(value)
    found = made.trace(DONE)
    assert found["state"] == "not known"
    assert any(f"a record of {made.topic} cannot be read" in note for note in found["notes"])
    assert made.states(2) == ["done"]


def test_without_a_state_topic_nothing_is_known_above_the_group(spout: Callable[[], StateWriter]):
    made = spout()
    made.commit()
    admin = make_admin(made.topology.bootstrap, {})
    world.wait_for(admin.delete_topics([made.topic])[made.topic], WAIT_S)
    found = made.trace(DONE)
    assert found["state"] == "not known"
    assert any(f"topic {made.topic} does not exist" in note for note in found["notes"])
    assert made.states(2, 10) == ["done", "not written yet"]


def test_a_state_that_may_not_be_read_is_unknown(
    spout: Callable[[], StateWriter], monkeypatch: pytest.MonkeyPatch
):
    made, partitions = spout(), Cluster.partitions
    made.commit()

    def refuse(cluster: Cluster, topics: list[str]) -> list[Place]:
        if made.topic in topics:
            raise NotAuthorized(f"{made.topic} may not be seen")
        return partitions(cluster, topics)

    monkeypatch.setattr(Cluster, "partitions", refuse)
    found = made.trace(DONE)
    assert found["state"] == "not known"
    assert any(f"whether the record is done: {made.topic} may not be seen" in note for note in found["notes"])


def test_a_state_not_read_to_its_end_in_time_is_unknown(spout: Callable[[], StateWriter]):
    made = spout()
    made.commit()
    made.write_state([DONE])
    cluster = Cluster(made.topology.bootstrap, made.topology.name, {})
    try:
        cluster.refresh()
        target = target_of_record(cluster.topology, made.slot.topic, 0, OPEN)
        late, whole = (find_trace(cluster, target, limit_s=limit_s) for limit_s in (0.0, 30.0))
    finally:
        cluster.close()
    assert (late.state, whole.state) == ("not known", "not emitted")
    assert any(f"{made.topic} could not be read to its end in time" in note for note in late.notes)


def test_a_state_hidden_by_an_open_transaction_is_unknown(spout: Callable[[], StateWriter]):
    made = spout()
    made.commit()
    made.write_state([])
    settings = {"bootstrap.servers": made.topology.bootstrap, "transactional.id": made.group}
    driver = make_producer(settings)
    driver.init_transactions(WAIT_S)
    driver.begin_transaction()
    state = encode_slot_state(SlotState(FRONTIER, 10, 1, BitMap64([DONE]).serialize()))
    key = SlotKey(made.slot.topic, 0, made.slot.topic_id).encode()
    driver.produce(made.topic, state, key, 0)
    assert driver.flush(WAIT_S) == 0
    found = made.trace(DONE)
    assert found["state"] == "not known"
    assert any("an open transaction hides" in note for note in found["notes"])
    driver.commit_transaction(WAIT_S)
    assert made.states(DONE) == ["done"]
