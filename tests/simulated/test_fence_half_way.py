"""A commit that meets a fence half way: Kafka answers it as it answers after an unexpected error."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic

from acktree.core.kafka.clients import make_admin
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.producers import bolt, stage
from acktree.producers.spouts.state_topic import StateTopic, ZombieDriver
from acktree.producers.spouts.task_commits import TaskStates
from acktree.spark.shared.bolt_claim import BoltClaim, NewerDriver
from acktree.testing import TopologyTester
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.transactions import Refused
from acktree.wire.state_records import task_start_key
from simulated_kafka import Simulation

TEXT = """
name = "t"
ackers = 2
[spouts.split]
topics = ["lines"]
emits = ["words"]
[bolts.copy]
reads = ["words"]
emits = ["copies"]
exactly_once = true
"""


@stage(reads="lines", emits="words")
def split(line: str) -> list[str]:
    return line.split()


@bolt(reads="words", emits="copies")
def copy(word: str) -> str:
    return word


def fence_next_commit(cluster: Cluster, is_meant: Callable[[str], bool]) -> list[str]:
    """Begin to fence the owner of the next transaction that is to end; return the ids that were fenced."""
    coordinator, met = cluster.transactions, list[str]()
    end = coordinator.end

    def meet(name: str, *request: int) -> None:
        if is_meant(name) and not met:
            coordinator.init(name, 60_000)
            met.append(name)
        end(name, *request)

    coordinator.end = meet  # type: ignore[method-assign, assignment]
    return met


@pytest.mark.parametrize("name", ["t.split.0", "t.copy-"])
def test_a_process_whose_transaction_is_fenced_half_way_goes_on(name: str) -> None:
    with TopologyTester(parse_topology(TEXT), spouts={"split": split}, bolts={"copy": copy}) as t:
        t.send("lines", "a")
        t.run_until_done()
        processes = [t.service(each).process for each in ("split", "copy")]
        met = fence_next_commit(t.cluster, lambda owner: owner.startswith(name))
        for number in range(20):
            t.send("lines", f"line {number}")
        t.run_until_done()
        assert len(met) == 1
        assert [t.service(each).process for each in ("split", "copy")] == processes
        assert sorted(t.values("copies")) == sorted(["a", *["line"] * 20, *map(str, range(20))])


@pytest.mark.parametrize("after_s", [0.005, 0.01, 0.02, 0.03, 0.08, 0.3])
def test_a_stage_that_was_fenced_waits_for_a_group_that_does_not_answer(after_s: float) -> None:
    with TopologyTester(parse_topology(TEXT), spouts={"split": split}, bolts={"copy": copy}) as t:
        t.send("lines", "a")
        t.run_until_done()
        process = t.service("split").process
        while t.cluster.transactions.init("t.split.0", 60_000) is None:
            t.run_for(0.01)
        t.send("lines", "b")
        t.run_for(after_s)
        t.broker_away(30.0)
        t.run_for(40.0)
        t.run_until_done()
        assert t.service("split").process is process
        assert sorted(t.values("words")) == ["a", "b"]


@pytest.fixture
def topic(kafka: str, simulation: Simulation) -> StateTopic:
    made: list[StateTopic] = []

    def make() -> None:
        admin = make_admin(kafka, {})
        admin.create_topics([NewTopic("lines", 1)])["lines"].result()
        apply_topology(kafka, parse_topology(TEXT), {})
        place = "t.split", "t.state-split", "owner"
        made.append(StateTopic(admin, kafka, {}, *place, start_key=task_start_key(0)))
        made[0].take_over(TaskStates(0))

    simulation.run(make)
    return made[0]


@pytest.mark.virtual
def test_an_owner_that_is_fenced_half_way_stops(topic: StateTopic, simulation: Simulation) -> None:
    fence_next_commit(simulation.cluster, "owner".__eq__)
    with pytest.raises(ZombieDriver, match="transactional id owner"):
        topic.commit({b"task/0": None})


@pytest.mark.virtual
@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_that_no_fence_has_failed_is_made_again(
    topic: StateTopic, simulation: Simulation, times: int
) -> None:
    """Its abort may be refused for the same reason."""
    left, end = [Refused(KafkaError.UNKNOWN)] * times, simulation.cluster.transactions.end

    def refuse(*request: Any) -> None:
        if left:
            raise left.pop()
        end(*request)

    simulation.cluster.transactions.end = refuse  # type: ignore[method-assign]
    log = simulation.cluster.log("t.state-split", 0)
    before = log.end_offset
    topic.commit({b"task/0": None})
    assert not left
    assert log.end_offset == before + 4  # aborted, and committed, each with its marker


@pytest.mark.virtual
def test_a_publisher_that_is_fenced_half_way_tries_again(topic: StateTopic, simulation: Simulation) -> None:
    met = fence_next_commit(simulation.cluster, "t.topology.publisher".__eq__)
    apply_topology("simulated", parse_topology(TEXT.replace("ackers = 2", "ackers = 3")), {})
    assert met
    assert read_history("simulated", "t", {}).latest.ackers == 3


@pytest.mark.virtual
def test_a_driver_of_a_bolt_that_is_fenced_half_way_stops(topic: StateTopic, simulation: Simulation) -> None:
    claim = BoltClaim("simulated", "t", "t.copy", {})
    met = fence_next_commit(simulation.cluster, lambda owner: owner.endswith("-driver"))
    with pytest.raises(NewerDriver):
        claim.write()
    assert met
    claim.close()
