"""Publishing: versions, slots that are never given out twice, topics made and grown."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from acktree.core.errors import BadTopology, BrokerUnreachable, MissingTopic, RefusedSetting, UnknownTopology
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.kafka.errors import clear_errors
from acktree.core.topology import publish
from acktree.core.topology.file import parse_topology
from acktree.core.topology.plan import DEAD_LETTER_HEADERS_BYTES, Plan
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import Published, Registry, read_history
from acktree.wire.state_records import MAX_STATE_BYTES
from producers.cluster import until
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

TOPOLOGY = """
name = "{name}"
ackers = {ackers}
[spouts.s]
topics = ["{name}.in"]
emits = [{out}]
tasks = {tasks}
[bolts.b]
reads = ["{name}.out"]
"""


class TopologyOnBroker:
    """One topology on a broker, changed step by step."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.admin = make_admin(bootstrap, {})

    def create(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions)])[topic].result()

    def apply(
        self,
        *,
        ackers: int = 2,
        tasks: int = 1,
        partitions: int | None = None,
        dry_run: bool = False,
        **settings: float,
    ) -> Plan:
        out = f'"{self.name}.out"'
        out = out if partitions is None else f"{{topic = {out}, partitions = {partitions}}}"
        text = TOPOLOGY.format(name=self.name, ackers=ackers, tasks=tasks, out=out)
        more = "".join(f"{key} = {value}\n" for key, value in settings.items())
        return apply_topology(self.bootstrap, parse_topology(more + text), {}, dry_run=dry_run)

    def setting(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        value: str | None = self.admin.describe_configs([resource])[resource].result()[name].value
        return value

    def limit(self, topic: str, limit_bytes: int) -> None:
        self.set(topic, "max.message.bytes", str(limit_bytes))

    def set(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result()

    def latest(self) -> Published:
        return read_history(self.bootstrap, self.name, {}).latest

    def partitions(self, topic: str) -> int:
        return len(self.admin.list_topics(topic).topics[topic].partitions)


@pytest.fixture
def cluster(kafka: str, unique: str, simulation: Simulation | None) -> TopologyOnBroker:
    made: list[TopologyOnBroker] = []

    def make() -> None:
        made.append(TopologyOnBroker(kafka, unique))
        made[0].create(f"{unique}.in", 3)

    run_in(simulation, make)
    return made[0]


def test_a_dry_run_reports_every_change_and_makes_none(cluster: TopologyOnBroker) -> None:
    plan = cluster.apply(dry_run=True)
    assert f"create topic {cluster.name}.ack with 2 partition(s)" in plan.lines()
    with pytest.raises(UnknownTopology):
        cluster.latest()


def test_the_first_version_assigns_slots_and_creates_the_topics(cluster: TopologyOnBroker) -> None:
    cluster.apply(tasks=2)
    published = cluster.latest()
    assert published.version == 1
    assert [(slot.slot, slot.partition) for slot in published.slots] == [(0, 0), (1, 1), (2, 2)]
    assert published.spout_tasks == {"s": (0, 1)}
    assert [published.task_of(slot) for slot in published.slots] == [0, 1, 0]
    assert cluster.partitions(f"{cluster.name}.ack-init") == 2
    assert cluster.partitions(f"{cluster.name}.spout-1") == 1
    assert cluster.partitions(f"{cluster.name}.out") == 3


def test_applying_twice_changes_nothing(cluster: TopologyOnBroker) -> None:
    cluster.apply()
    assert cluster.apply().lines() == []
    assert cluster.latest().version == 1


def test_a_larger_acker_count_adds_partitions_and_a_smaller_one_keeps_them(
    cluster: TopologyOnBroker,
) -> None:
    cluster.apply()
    cluster.apply(ackers=5)
    assert cluster.partitions(f"{cluster.name}.ack") == 5
    cluster.apply(ackers=1)
    assert cluster.partitions(f"{cluster.name}.ack") == 5
    history = read_history(cluster.bootstrap, cluster.name, {})
    assert [history.ackers(version) for version in (1, 2, 3)] == [2, 5, 1]


def test_min_insync_replicas_is_set_on_new_topics_and_changed_on_acktrees_own(
    cluster: TopologyOnBroker,
) -> None:
    cluster.apply(min_insync_replicas=1, replication_factor=1)
    name, setting = cluster.name, "min.insync.replicas"
    assert cluster.latest().min_insync_replicas == 1
    plan = cluster.apply(min_insync_replicas=2)
    own = ("topology", "dead-letter", "stats", "ack", "ack-init", "spout-0", "state-s")
    assert {each.topic for each in plan.change} == {f"{name}.{topic}" for topic in own}
    assert {cluster.setting(f"{name}.{topic}", setting) for topic in own} == {"2"}
    assert cluster.setting(f"{name}.out", setting) == "1"
    plan = cluster.apply()
    assert f"set {setting} of topic {name}.ack to the default of the broker" in plan.lines()
    assert {cluster.setting(f"{name}.{topic}", setting) for topic in own} == {"1"}


def test_the_dead_letter_topic_accepts_what_its_sources_accept_and_headers(cluster: TopologyOnBroker) -> None:
    topic, setting = f"{cluster.name}.dead-letter", "max.message.bytes"
    plan = cluster.apply()
    assert f"set {setting} of topic {topic} to {1_048_588 + DEAD_LETTER_HEADERS_BYTES}" in plan.lines()
    cluster.limit(f"{cluster.name}.in", 5_000_000)
    cluster.apply()
    assert cluster.setting(topic, setting) == str(5_000_000 + DEAD_LETTER_HEADERS_BYTES)
    for larger in (5_000_000, 7_000_000):
        cluster.limit(f"{cluster.name}.in", 1_000)
        cluster.limit(topic, larger)
        assert cluster.apply().lines() == []
        assert cluster.setting(topic, setting) == str(larger)


def test_a_topology_is_published_even_if_the_broker_refuses_a_limit(
    cluster: TopologyOnBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = SimpleNamespace(name=lambda: "POLICY_VIOLATION", str=lambda: "no more than 1 MB")
    wait_for = publish.world.wait_for

    def refuse(future: Any, timeout_s: float) -> Any:
        found = wait_for(future, timeout_s)
        if future in refused:
            raise KafkaException(error)
        return found

    start, refused = publish._start, []
    monkeypatch.setattr(publish, "_start", lambda *more: refused.append(start(*more)) or refused[-1])
    monkeypatch.setattr(publish.world, "wait_for", refuse)
    cluster.apply()
    assert refused
    assert cluster.latest().version == 1


def test_spark_options_are_published_and_removed(cluster: TopologyOnBroker) -> None:
    text = TOPOLOGY.format(name=cluster.name, ackers=1, tasks=1, out=f'"{cluster.name}.out"')
    more = text.replace("tasks = 1", 'tasks = 1\nspark = {complete = "batch", max_offsets_per_trigger = 7}')
    for version, (file, complete, limit) in enumerate([(more, "batch", 7), (text, "tree", None)], 1):
        apply_topology(cluster.bootstrap, parse_topology(file), {})
        assert apply_topology(cluster.bootstrap, parse_topology(file), {}).lines() == []
        found = cluster.latest()
        assert (found.version, found.file()) == (version, parse_topology(file))
        assert found.spouts["s"].spark.complete == complete
        assert found.spouts["s"].spark.max_offsets_per_trigger == limit


def test_a_longer_retention_also_applies_to_results(cluster: TopologyOnBroker) -> None:
    cluster.apply()
    cluster.apply(control_retention_s=40_000)
    kept = {cluster.setting(f"{cluster.name}.{topic}", "retention.ms") for topic in ("ack", "spout-0")}
    assert kept == {"40000000"}


def test_a_replication_factor_unlike_that_of_existing_topics_is_a_warning(
    cluster: TopologyOnBroker,
) -> None:
    cluster.apply()
    plan = cluster.apply(replication_factor=3, dry_run=True)
    topic = f"topic {cluster.name}.ack has replication factor 1, the file says 3"
    assert [each for each in plan.warnings if each.startswith(topic)]
    assert plan.topic_lines() == []


def test_a_topic_of_tuples_is_created_with_the_partitions_that_the_file_states(
    cluster: TopologyOnBroker,
) -> None:
    cluster.apply(partitions=7)
    assert cluster.partitions(f"{cluster.name}.out") == 7
    assert cluster.apply(partitions=7).lines() == []


@pytest.mark.parametrize(("has", "states", "advice"), [(3, 5, ", or grow it: kafka-topics"), (5, 3, "")])
def test_a_partition_count_unlike_that_of_an_existing_topic_is_refused(
    cluster: TopologyOnBroker, has: int, states: int, advice: str
) -> None:
    topic = f"{cluster.name}.out"
    cluster.create(topic, has)
    with pytest.raises(BadTopology) as caught:
        cluster.apply(partitions=states)
    sentence = str(caught.value)
    assert sentence.startswith(
        f"topic {topic} has {has} partition(s), the file says {states}: acktree does not"
    )
    assert f"write partitions = {has}{advice}" in sentence
    assert sentence.endswith(f"--topic {topic} --partitions {states}" if advice else f"partitions = {has}")
    assert "\n" not in sentence
    assert cluster.partitions(f"{cluster.name}.out") == has
    with pytest.raises(UnknownTopology):
        cluster.latest()


def test_a_topic_enlarged_by_an_operator_only_causes_a_warning(
    cluster: TopologyOnBroker,
) -> None:
    cluster.apply(partitions=2)
    out = f"{cluster.name}.out"
    cluster.admin.create_partitions([NewPartitions(out, 4)])[out].result()
    plan = cluster.apply(partitions=2, tasks=2)
    assert plan.publish is not None
    (warning,) = plan.warnings
    assert warning.endswith("write partitions = 4")
    with pytest.raises(BadTopology, match="has 4 partition"):
        cluster.apply(partitions=3)
    assert cluster.partitions(f"{cluster.name}.out") == 4


class CountedConsumer:
    """A consumer that counts the calls of each of its methods."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.consumer, self.calls = make_consumer(settings), Counter[str]()

    def __getattr__(self, name: str) -> object:
        self.calls[name] += 1
        return getattr(self.consumer, name)


def test_a_registry_reads_published_versions_and_polls_once_if_there_are_none(
    cluster: TopologyOnBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.apply(ackers=1)
    made: list[CountedConsumer] = []
    with monkeypatch.context() as counted:
        counted.setattr(
            "acktree.core.topology.registry.make_consumer",
            lambda s: made.append(CountedConsumer(s)) or made[-1],
        )
        registry = Registry(cluster.bootstrap, cluster.name, {})
    (consumer,) = made
    try:
        for ackers in (2, 3, 4):
            cluster.apply(ackers=ackers)
            registry.catch_up()
            assert registry.history.latest.ackers == ackers
        consumer.calls.clear()
        registry.catch_up()
        assert consumer.calls == {"get_watermark_offsets": 1}
        assert registry.refresh()
        assert not registry.refresh()
    finally:
        registry.close()


def test_a_publisher_that_is_fenced_by_another_one_retries_after_it(
    cluster: TopologyOnBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.apply(ackers=1)
    make_plan, looks = publish.make_plan, list[Plan]()

    def look(*arguments: Any) -> Plan:
        looks.append(found := make_plan(*arguments))
        if len(looks) == 2:  # between its fencing of others and its publishing
            cluster.apply(ackers=3)
        return found

    monkeypatch.setattr(publish, "make_plan", look)
    cluster.apply(ackers=2)
    history = read_history(cluster.bootstrap, cluster.name, {})
    assert [history.ackers(version) for version in (1, 2, 3)] == [1, 3, 2]


def test_task_numbers_are_never_reused(cluster: TopologyOnBroker) -> None:
    cluster.apply(tasks=3)
    cluster.apply(tasks=1)
    cluster.apply(tasks=4)
    assert cluster.latest().spout_tasks == {"s": (0, 1, 2, 3)}


@pytest.mark.real
def test_added_partitions_and_recreated_topics_get_new_slots(cluster: TopologyOnBroker) -> None:
    cluster.apply()
    source = f"{cluster.name}.in"
    cluster.admin.create_partitions([NewPartitions(source, 4)])[source].result()
    until(lambda: cluster.partitions(source) == 4)
    cluster.apply()
    assert [slot.slot for slot in cluster.latest().slots] == [0, 1, 2, 3]
    cluster.admin.delete_topics([source])[source].result()
    until(lambda: source not in cluster.admin.list_topics().topics)
    cluster.create(source, 1)
    cluster.apply()
    slots = cluster.latest().slots
    assert [slot.slot for slot in slots] == [0, 1, 2, 3, 4]
    assert slots[4].topic_id != slots[0].topic_id


def test_a_source_topic_is_never_created(cluster: TopologyOnBroker) -> None:
    cluster.admin.delete_topics([f"{cluster.name}.in"])[f"{cluster.name}.in"].result()
    with pytest.raises(MissingTopic, match="never creates source topics"):
        cluster.apply()


def test_invalid_records_in_the_registry_are_skipped(cluster: TopologyOnBroker) -> None:
    cluster.apply()
    producer = make_producer({"bootstrap.servers": cluster.bootstrap})
    for key, value in ((b"7", b"{}"), (b"x", b"\xff"), (b"9", cluster.latest().model_dump_json().encode())):
        producer.produce(f"{cluster.name}.topology", value, key)
    producer.flush()
    assert cluster.latest().version == 1


def test_a_view_follows_what_is_published(cluster: TopologyOnBroker) -> None:
    cluster.apply()
    registry = Registry(cluster.bootstrap, cluster.name, {})
    cluster.apply(ackers=3)
    until(registry.refresh)
    assert registry.history.latest.ackers == 3
    registry.close()


def unanswered() -> Future[Any]:
    return Future()


def timed_out() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    return future


@pytest.mark.parametrize("answer", [unanswered, timed_out])
def test_topics_whose_settings_are_not_answered_in_time_are_reported_in_one_sentence(
    cluster: TopologyOnBroker, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Future[Any]]
) -> None:
    """An answer that does not come says nothing of a topic's limits."""

    def describe_configs(resources: list[ConfigResource], **_: Any) -> dict[ConfigResource, Any]:
        return {resource: answer() for resource in resources}

    monkeypatch.setattr(publish, "BROKER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(cluster.admin, "describe_configs", describe_configs)
    monkeypatch.setattr(publish, "make_admin", lambda *_: cluster.admin)
    with pytest.raises(BrokerUnreachable, match="no Kafka broker answers"):
        cluster.apply()


@pytest.mark.real
def test_a_broker_that_does_not_answer_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "acktree.core.kafka.clients.BROKER_TIMEOUT_S", 0.5
    )  # nobody is there, however long it waits
    with pytest.raises(BrokerUnreachable, match=r"no Kafka broker answers at 127\.0\.0\.1:1 "):
        make_admin("127.0.0.1:1", {"socket.timeout.ms": "1000"})


@pytest.mark.parametrize(
    "key",
    [
        "enable.auto.commit=true",
        "enable.auto.offset.store=true",
        "isolation.level=read_uncommitted",
        "group.id=x",
        "auto.offset.reset=latest",
        "auto.offset.reset=error",
        "check.crcs=false",
        "enable.partition.eof=false",
        "enable.partition.eof=true",
    ],
)
def test_a_setting_that_breaks_a_guarantee_is_refused_with_the_reason(kafka: str, key: str) -> None:
    name, _, value = key.partition("=")
    with pytest.raises(RefusedSetting, match=f"{name}={value} is refused: "):
        Registry(kafka, "any", {name: value})


def test_a_published_version_can_be_read_as_soon_as_apply_returns(cluster: TopologyOnBroker) -> None:
    place = TopicPartition(f"{cluster.name}.topology", 0)

    def end(isolation: IsolationLevel) -> int:
        asked = {place: OffsetSpec.latest()}
        (answer,) = cluster.admin.list_offsets(asked, isolation_level=isolation).values()
        return answer.result().offset

    for ackers in range(1, 11):
        cluster.apply(ackers=ackers)
        assert end(IsolationLevel.READ_COMMITTED) == 2 * ackers, "the end of a transaction is not written yet"
        assert end(IsolationLevel.READ_UNCOMMITTED) == 2 * ackers


def test_the_state_of_a_spout_is_on_one_compacted_partition(cluster: TopologyOnBroker) -> None:
    cluster.apply()
    topic = f"{cluster.name}.state-s"
    assert cluster.partitions(topic) == 1
    assert cluster.setting(topic, "cleanup.policy") == "compact"
    assert cluster.setting(topic, "max.message.bytes") == str(MAX_STATE_BYTES)
    assert cluster.setting(topic, "segment.bytes") == str(2 * MAX_STATE_BYTES)


def test_a_state_topic_accepts_the_largest_state_and_keeps_a_larger_limit(
    cluster: TopologyOnBroker,
) -> None:
    cluster.apply()
    topic = f"{cluster.name}.state-s"
    cluster.limit(topic, 1_048_588)
    cluster.set(topic, "segment.bytes", "100000000")
    change = f"set max.message.bytes of topic {topic} to {MAX_STATE_BYTES}"
    assert cluster.apply().lines() == [change]
    cluster.limit(topic, 2 * MAX_STATE_BYTES)
    assert cluster.apply().lines() == []
    assert cluster.setting(topic, "segment.bytes") == "100000000"


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_state_topic_that_loses_records_is_refused_with_what_to_do(
    cluster: TopologyOnBroker, policy: str
) -> None:
    topic = f"{cluster.name}.state-s"
    cluster.create(topic, 1)
    cluster.set(topic, "cleanup.policy", policy)
    for is_dry_run in (True, False):
        with pytest.raises(
            BadTopology, match=f"{topic} has cleanup.policy={policy}, so .* set it: kafka-con"
        ):
            cluster.apply(dry_run=is_dry_run)
    with pytest.raises(UnknownTopology):
        cluster.latest()
    cluster.set(topic, "cleanup.policy", "compact")
    cluster.apply()
    assert cluster.latest().version == 1


@pytest.mark.parametrize("asked_for", ["describe", "_settings"])
def test_a_query_for_a_topic_that_one_broker_does_not_know_yet_is_retried(
    cluster: TopologyOnBroker, monkeypatch: pytest.MonkeyPatch, asked_for: str
) -> None:
    cluster.apply()
    known, calls = getattr(publish, asked_for), list[int]()

    def ask(*about: Any) -> Any:
        calls.append(1)
        with clear_errors(cluster.bootstrap):
            if len(calls) < 3:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return known(*about)

    monkeypatch.setattr(publish, asked_for, ask)
    assert cluster.apply().publish is None
    assert len(calls) == 3
