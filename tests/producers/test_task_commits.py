"""A task of a spout in Python fences its predecessor, and nothing that it gives out is given out again."""

import subprocess
import sys
from threading import Event

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.errors import BrokerUnreachable, MissingTopic
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer, metadata_of
from acktree.core.kafka.settings import consumer_settings
from acktree.core.reports.liveness import Liveness
from acktree.core.topology.registry import read_history
from acktree.producers.spouts import task_commits
from acktree.producers.spouts.outside_commit import GroupInUse
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.spouts.state_topic import StateTopic, UnreadableState, ZombieDriver
from acktree.producers.spouts.task_commits import SEQUENCES, TaskCommits
from acktree.wire.ids import MAX_RUN
from acktree.wire.state_records import (
    SPOUT_KEY,
    START_KEY,
    SlotKey,
    SlotState,
    SpoutState,
    StateStart,
    TaskState,
    decode_task_state,
    encode_slot_state,
    encode_spout_state,
    encode_state_start,
    encode_task_state,
    task_key,
    task_start_key,
)
from deadlines import ANSWER_S, stretched
from producers.cluster import WorkerCluster, until
from producers.test_exactly_once import LoadingClient
from producers.test_spout import Once, ScriptedAcker, run
from producers.trees import published

pytestmark = pytest.mark.simulated

STATES = st.builds(
    TaskState,
    term=st.integers(1, 2**40),
    driver=st.text(max_size=20),
    run=st.integers(1, MAX_RUN),
    sequence=st.integers(0, 2**40),
    next_offset=st.integers(0, 2**40),
)
DAMAGED = b"\xc3\x01 no state"


@given(STATES)
def test_a_decoded_task_state_equals_the_encoded_one(state: TaskState):
    assert decode_task_state(encode_task_state(state)) == state


def start(cluster: WorkerCluster) -> TaskCommits:
    latest = read_history(cluster.bootstrap, cluster.name, {}).latest
    return TaskCommits(cluster.bootstrap, {}, latest, "s", 0, Liveness(60.0))


def write(cluster: WorkerCluster, *records: tuple[bytes, bytes | None]) -> None:
    producer = make_producer({"bootstrap.servers": cluster.bootstrap})
    for key, value in records:
        producer.produce(cluster.topic("state-s"), value, key, 0)
    producer.flush()


def test_each_start_has_the_next_run_and_continues_the_message_numbers(cluster: WorkerCluster):
    cluster.apply(one=(["a"], []))
    first, second = start(cluster), start(cluster)
    assert (first.state.term, first.state.run, second.state.term, second.state.run) == (1, 1, 2, 2)
    assert second.sequences.next == first.sequences.next + SEQUENCES


@pytest.mark.real
def test_a_group_with_a_member_ends_a_start_and_the_error_names_it(cluster: WorkerCluster):
    cluster.apply(one=(["a"], []))
    group = f"{cluster.name}.s"
    stranger = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    stranger.subscribe([cluster.topic("a")])
    until(lambda: stranger.poll(0.1) is not None or stranger.assignment(), "the stranger is a member")
    with pytest.raises(GroupInUse, match=f"member of group {group}.*stop that consumer"):
        start(cluster)
    stranger.close()
    assert start(cluster).state.run == 1


def test_a_start_without_a_broker_names_its_address(monkeypatch: pytest.MonkeyPatch):
    latest = published()
    monkeypatch.setattr("acktree.core.kafka.clients.BROKER_TIMEOUT_S", 0.2)
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        TaskCommits("127.0.0.1:1", {}, latest, "s", 0, Liveness(60.0))


def delete_state(cluster: WorkerCluster) -> None:
    admin, name = make_admin(cluster.bootstrap, {}), cluster.topic("state-s")
    admin.delete_topics([name])[name].result()
    until(lambda: name not in admin.list_topics(timeout=ANSWER_S).topics)


def test_a_missing_state_topic_is_an_error_that_says_how_to_make_it(cluster: WorkerCluster):
    cluster.apply()
    delete_state(cluster)
    with pytest.raises(MissingTopic, match=r"holds the state of the spout.*acktree topology apply"):
        start(cluster)


def test_numbers_begin_elsewhere_after_the_state_is_lost(cluster: WorkerCluster):
    cluster.apply()
    first = start(cluster)
    delete_state(cluster)
    cluster.apply()
    second = start(cluster)
    assert second.state.run == first.state.run
    assert abs(second.sequences.next - first.sequences.next) > SEQUENCES


@pytest.mark.parametrize("key", [task_key(0), task_start_key(0), b"task/00", b"no key"])
def test_a_record_of_the_task_that_cannot_be_read_ends_a_start_with_its_coordinates(
    cluster: WorkerCluster, key: bytes
):
    cluster.apply()
    write(cluster, (key, DAMAGED))
    with pytest.raises(UnreadableState, match=rf"{cluster.name}\.state-s/0/\d+ cannot be read"):
        start(cluster)


def test_records_of_other_tasks_and_of_a_spout_in_spark_are_ignored(cluster: WorkerCluster):
    cluster.apply()
    slot = SlotKey("lines", 3, "vPeOCWypqUOSepEvx0cbog").encode()
    write(
        cluster,
        *((task_key(1), DAMAGED), (task_start_key(1), DAMAGED)),
        *((START_KEY, encode_state_start(StateStart(7))), (slot, encode_slot_state(SlotState(0, 0, 1, b"")))),
        (SPOUT_KEY, encode_spout_state(SpoutState(9, "other"))),
    )
    assert start(cluster).state.term == 1


def test_one_of_two_processes_that_start_together_stops(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    """The second one starts between what the first one reads and what it commits."""
    cluster.apply()
    successor, made = task_commits._successor, []

    def start_another(before, driver):
        monkeypatch.setattr(task_commits, "_successor", successor)
        made.append(start(cluster))
        return successor(before, driver)

    monkeypatch.setattr(task_commits, "_successor", start_another)
    with pytest.raises(ZombieDriver, match=rf"{cluster.name}\.s\.0.*this one stops"):
        start(cluster)
    assert made[0].state.run == 1
    made[0]._commit(10.0, 0)


WRITE_LETTERS_FENCED = """
import sys
from acktree.core.kafka.clients import make_admin
from acktree.producers.spouts.state_topic import DeadLetter, StateTopic, ZombieDriver
from acktree.producers.spouts.task_commits import TaskStates
from acktree.wire.state_records import task_start_key

bootstrap, name = sys.argv[1:]
first, second = (
    StateTopic(
        make_admin(bootstrap, {}), bootstrap, {}, f"{name}.s", f"{name}.state-s", f"{name}.s.0",
        start_key=task_start_key(0),
    )
    for _ in range(2)
)
first.take_over(TaskStates(0))
second.take_over(TaskStates(0))
try:
    first.commit({}, [DeadLetter(f"{name}.dead-letter", [(b"k", b"v", [])]) for _ in range(3)])
except ZombieDriver:
    print("stopped")
"""


@pytest.mark.real
def test_an_owner_that_was_fenced_stops_also_where_it_writes_dead_letters(cluster: WorkerCluster):
    """confluent's ``flush`` goes on to call back with a fatal error, and ends with a SystemError."""
    cluster.apply()
    command = [sys.executable, "-c", WRITE_LETTERS_FENCED, cluster.bootstrap, cluster.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=False)
    assert done.stdout == "stopped\n", done.stderr


@pytest.mark.parametrize("method", ["committed", "commit"])
def test_a_start_waits_while_the_broker_loads_its_groups(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch, method: str
):
    made: list[LoadingClient] = []

    def make(settings):
        made.append(LoadingClient(make_consumer(settings), method, KafkaError.COORDINATOR_LOAD_IN_PROGRESS))
        return made[-1]

    monkeypatch.setattr(task_commits, "make_consumer", make)
    cluster.apply()
    assert start(cluster).state.run == 1
    assert [consumer.refused for consumer in made] == [1]


def test_a_start_waits_while_the_broker_loads_its_transactions(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    made: list[LoadingClient] = []

    def make(settings) -> LoadingClient:
        loading = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
        made.append(LoadingClient(make_producer(settings), "init_transactions", loading))
        return made[-1]

    monkeypatch.setattr("acktree.producers.spouts.state_topic.make_producer", make)
    cluster.apply()
    assert start(cluster).state.run == 1
    assert [producer.refused for producer in made] == [1]


def test_the_group_shows_how_far_results_are_read_and_nothing_else(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task_commits, "COMMIT_INTERVAL_S", 0.1)
    cluster.apply(one=(["a"], []))
    spout, acker = Once("m"), ScriptedAcker(cluster)
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    thread = run(worker)
    until(acker.roots)
    acker.ack_new()
    looker = make_consumer(consumer_settings(cluster.bootstrap, f"{cluster.name}.s", {}))

    def shown() -> tuple[int, str]:
        (found,) = looker.committed([TopicPartition(cluster.topic("spout-0"), 0)], timeout=ANSWER_S)
        return found.offset, metadata_of(found)

    until(lambda: shown() == (1, ""))
    worker.stop()
    thread.join()
    assert start(cluster).next_offset == 1


def test_the_loop_continues_while_a_commit_waits_for_the_broker(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task_commits, "COMMIT_INTERVAL_S", 0.1)
    cluster.apply(one=(["a"], []))
    spout = Once()
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    waiting, end, commit = Event(), Event(), StateTopic.commit

    def wait(*given, **named):
        waiting.set()
        until(end.is_set)
        commit(*given, **named)

    monkeypatch.setattr(StateTopic, "commit", wait)
    thread = run(worker)
    until(waiting.is_set)
    spout.waiting.append("m")
    until(lambda: len(cluster.read(cluster.topic("a"))) == 1)
    end.set()
    worker.stop()
    thread.join()


def test_an_open_transaction_of_a_dead_task_holds_up_no_other_task_for_long(cluster: WorkerCluster):
    cluster.spout_tasks = 2
    cluster.apply()
    dead = start(cluster)
    producer: Producer = dead._topic._producer
    producer.begin_transaction()
    producer.produce(cluster.topic("state-s"), b"", task_key(0), 0)
    producer.flush()
    latest = cluster.history.latest
    other = TaskCommits(cluster.bootstrap, {}, latest, "s", 1, Liveness(60.0))
    assert other.state.run == 1
