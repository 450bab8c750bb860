"""Short scripts, each for one thing in which a simulated Kafka is easily wrong: both must show the same."""

import logging
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.core.world import RealWorld, World
from acktree.testing.kafka.broker.assignors import Member, assign
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.virtual.kernel import Kernel
from acktree.testing.world import SimulatedWorld
from conformance.comparison import compare
from conformance.script import Script

TOPIC = ("create_topic", "t", 1, {})
LONG = "x" * 4097
JOINED_S, ANSWER_S = 60.0, 0.1
"""At most so long a member takes to join; a simulated broker takes so long for each answer."""
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def record(name: str, value: str, key: str | None = "k", partition: int = 0, topic: str = "t") -> tuple:
    return "produce", name, topic, partition, key, value, None, None


SCRIPTS: dict[str, Script] = {
    "purged records leave a gap that fails the next batch": [
        *[TOPIC, ("producer", "p", "x"), ("init", "p"), ("begin", "p"), record("p", "1"), record("p", "2")],
        *[("purge", "p"), record("p", "3"), ("abort_transaction", "p"), ("begin", "p"), record("p", "4")],
        ("commit_transaction", "p"),
    ],
    "a transaction that has to be aborted drops its records before it learns that it is fenced": [
        *[TOPIC, ("consumer", "c", "g", {}), ("remember_membership", "c", "s")],
        *[("producer", "p", "x"), ("init", "p"), ("begin", "p"), record("p", "1"), ("flush", "p")],
        *[record("p", "2"), ("send_offsets", "p", "s", [["t", 0, 1, LONG]])],
        *[("producer", "q", "x"), ("init", "q"), ("flush", "p"), ("abort_transaction", "p")],
    ],
    "a commit fails by the last answer, that of a partition that is missing": [
        *[TOPIC, ("consumer", "c", "g", {}), ("commit", "c", [["t", 0, 3, LONG], ["u", 1, 7, ""]])],
    ],
    "a commit fails by the last answer, that of the topic's own partition": [
        *[TOPIC, ("consumer", "c", "g", {}), ("commit", "c", [["t", 0, 3, LONG], ["t", 1, 7, ""]])],
    ],
    "offsets of a missing partition are sent again until the time is up": [
        *[TOPIC, ("consumer", "c", "g", {}), ("remember_membership", "c", "s")],
        *[("producer", "p", "x"), ("init", "p"), ("begin", "p")],
        ("send_offsets", "p", "s", [["t", 0, 1, LONG], ["t", 4, 5, ""]]),
    ],
    "a consumer of KIP-848 that never joined has a member id": [
        *[TOPIC, ("consumer", "a", "g", {"group.protocol": "consumer"}), ("subscribe", "a", ["t"])],
        *[("consumer", "b", "g", {"group.protocol": "consumer"}), ("remember_membership", "b", "s")],
        *[
            ("producer", "p", "x"),
            ("init", "p"),
            ("begin", "p"),
            ("send_offsets", "p", "s", [["t", 0, 1, ""]]),
        ],
    ],
    "a static member that has not joined is unknown to a group with members": [
        *[TOPIC, ("consumer", "a", "g", {}), ("subscribe", "a", ["t"])],
        *[("consumer", "c", "g", {"group.instance.id": "c"}), ("remember_membership", "c", "s")],
        *[
            ("producer", "p", "x"),
            ("init", "p"),
            ("begin", "p"),
            ("send_offsets", "p", "s", [["t", 0, 1, ""]]),
        ],
    ],
    "a consumer remembers where a log began, and resets from there": [
        *[TOPIC, ("producer", "p", None), *[record("p", str(number)) for number in range(6)], ("flush", "p")],
        *[("consumer", "c", "g", {"auto.offset.reset": "latest"}), ("assign", "c", [["t", 0, 0]])],
        *[("read", "c"), ("unassign", "c"), ("delete_records", "t", 0, 4), ("assign", "c", [["t", 0, -2]])],
    ],
    "a transaction's timeout fences its producer": [
        *[TOPIC, ("consumer", "c", "g", {}), ("remember_membership", "c", "s")],
        *[("impatient_producer", "p", "x"), ("init", "p"), ("begin", "p"), record("p", "1"), ("flush", "p")],
        *[("wait_out", "p"), ("send_offsets", "p", "s", [["t", 0, 1, ""]]), ("commit_transaction", "p")],
        *[("abort_transaction", "p"), ("begin", "p"), record("p", "2"), ("init", "p")],
        *[
            ("producer", "q", "x"),
            ("init", "q"),
            ("begin", "q"),
            record("q", "3"),
            ("commit_transaction", "q"),
        ],
    ],
    "a static member that comes back takes over without a rebalance": [
        *[("create_topic", "t", 2, {}), ("producer", "p", None), record("p", "1"), ("flush", "p")],
        ("consumer", "a", "g", {"auto.offset.reset": "earliest", "group.instance.id": "a"}),
        ("subscribe", "a", ["t"]),
        ("consumer", "b", "g", {"auto.offset.reset": "earliest", "group.instance.id": "b"}),
        *[("subscribe", "b", ["t"]), ("take_over", "a", "a again"), ("read_as_group", "g")],
    ],
    "a paused partition stays paused through a rebalance": [
        *[TOPIC, ("producer", "p", None), ("consumer", "c", "g", {"auto.offset.reset": "earliest"})],
        *[("subscribe", "c", ["t"]), ("read_as_group", "g"), ("pause_as_group", "g", "t", 0)],
        *[record("p", "1"), ("flush", "p"), ("grow_topic", "t", 2), ("read_as_group", "g")],
        *[("resume_as_group", "g"), ("read_as_group", "g")],
    ],
    "an admin client sees the members of a group, what it has committed, and that it is empty or unknown": [
        *[("create_topic", "t", 3, {}), ("describe_group", "g"), ("listed_offsets", "g", [["t", 0]])],
        ("consumer", "a", "g", {"auto.offset.reset": "earliest", "client.id": "somebody"}),
        *[("commit", "a", [["t", 2, 0, "m"], ["t", 0, 0]]), ("describe_group", "g")],
        ("listed_offsets", "g", [["t", 2], ["t", 0], ["t", 1], ["t", 9], ["none", 0]]),
        ("consumer", "b", "g", {"auto.offset.reset": "earliest", "group.instance.id": "b"}),
        *[("subscribe", "a", ["t"]), ("describe_group", "g"), ("subscribe", "b", ["t"])],
        *[("describe_group", "g"), ("close_consumer", "a"), ("describe_group", "g")],
        *[("close_consumer", "b"), ("describe_group", "g")],
        ("consumer", "n", "next", {"auto.offset.reset": "earliest", "group.protocol": "consumer"}),
        *[("subscribe", "n", ["t"]), ("describe_group", "next"), ("close_consumer", "n")],
        *[("describe_group", "next"), ("producer", "p", "x"), ("consumer", "c", "pending", {})],
        *[("remember_membership", "c", "s"), ("init", "p"), ("begin", "p")],
        *[("send_offsets", "p", "s", [["t", 0, 1, ""]]), ("describe_group", "pending")],
        *[
            ("abort_transaction", "p"),
            ("describe_group", "pending"),
            ("listed_offsets", "pending", [["t", 0]]),
        ],
        *[("delete_topic", "t"), ("describe_group", "g")],
    ],
    "a broker allows a group only some timeouts, and none that its heartbeats miss": [
        *[("alter_config", "GROUP", "g", SESSION, value) for value in ("5999", "60001", "6000", "14000")],
        *[("alter_config", "GROUP", "g", HEARTBEAT, value) for value in ("999", "15001", "14000", "13999")],
        ("describe_configs", "GROUP", "g"),
    ],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_both_kafkas_show_the_same(bootstrap: str, admin: AdminClient, script: Script):
    difference = compare(script, bootstrap, admin, f"conformance-{uuid.uuid4().hex[:12]}")
    assert difference is None, difference


def subscribed_twice(world: World, bootstrap: str, prefix: str, protocol: str) -> set[str]:
    """Return what a consumer reads that has subscribed to more topics while it still joined its group."""
    names = [f"{prefix}-{number}" for number in range(2)]
    settings = {"bootstrap.servers": bootstrap, "group.id": prefix, "group.protocol": protocol}
    consumer, until_s = world.consumer(settings, logging.getLogger()), world.monotonic_s() + JOINED_S
    consumer.subscribe(names[:1])
    world.sleep(1.5 * ANSWER_S)
    consumer.subscribe(names)
    while len(consumer.assignment()) < len(names) and world.monotonic_s() < until_s:
        consumer.poll(0.1)
    found = {place.topic.removeprefix(prefix) for place in consumer.assignment()}
    consumer.close()
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_subscribes_again_while_it_joins_gets_the_newer_topics(
    bootstrap: str, admin: AdminClient, protocol: str
):
    prefix = f"conformance-{uuid.uuid4().hex[:12]}"
    for made in admin.create_topics([NewTopic(f"{prefix}-{number}", 1) for number in range(2)]).values():
        made.result()
    assert subscribed_twice(RealWorld(), bootstrap, prefix, protocol) == {"-0", "-1"}
    kernel, found = Kernel(), set[str]()
    world = SimulatedWorld(kernel, Cluster(kernel))
    world.delay_s = lambda: ANSWER_S
    for number in range(2):
        world.cluster.create_topic(f"{prefix}-{number}", 1)
    task = kernel.spawn(
        kernel.process("c"), lambda: found.update(subscribed_twice(world, "", prefix, protocol)), "main"
    )
    kernel.run(lambda: task.is_done)
    kernel.close()
    assert found == {"-0", "-1"}


def test_the_uniform_assignor_lets_members_keep_what_they_have():
    members = [Member(name, ("t",), 45.0, 300.0, assignor="uniform") for name in "abc"]
    first = assign(members, {"t": 3})
    assert first == {"a": [("t", 0)], "b": [("t", 1)], "c": [("t", 2)]}
    assert assign(members, {"t": 4}, first) == {**first, "a": [("t", 0), ("t", 3)]}
    assert assign(members[1:], {"t": 3}, first) == {"b": [("t", 1), ("t", 0)], "c": [("t", 2)]}
