"""Short scripts for what a state in one transaction rests on: both Kafkas must show the same.

Pending offsets and those that a group gets meanwhile; what a reader of each isolation level may see; which
calls of a transactional producer are refused.
"""

import logging
import uuid

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.virtual.kernel import Kernel
from acktree.testing.world import SimulatedWorld
from conformance.comparison import compare
from conformance.script import Script
from conformance.test_conformance_scripts import TOPIC, record

EARLIEST = {"auto.offset.reset": "earliest"}
UNCOMMITTED = {**EARLIEST, "isolation.level": "read_uncommitted"}
AT_START = ("assign", "c", [["t", 0, 0]])


def writing(name: str, transactional_id: str) -> Script:
    """Return what makes a producer and begins its first transaction."""
    return [("producer", name, transactional_id), ("init", name), ("begin", name)]


def sending(name: str, offset: int, group: str = "g", topic: str = "t") -> tuple:
    return "send_offsets", name, group, [[topic, 0, offset, ""]]


def grouped(name: str, group: str, settings: dict[str, str] | None = None) -> Script:
    """Return what makes a consumer, and remembers that it is a stranger to its group."""
    return [("consumer", name, group, settings or {}), ("remember_membership", name, group)]


def shown(group: str, topic: str = "t") -> tuple:
    return "listed_offsets", group, [[topic, 0]]


SCRIPTS: dict[str, Script] = {
    "a plain commit beats an older pending one, and a younger pending one beats it": [
        *[
            TOPIC,
            *grouped("c", "g"),
            *writing("p", "x"),
            sending("p", 5),
            ("commit", "c", [["t", 0, 2, "m"]]),
        ],
        *[("committed", "c", [["t", 0]]), ("commit_transaction", "p"), ("committed", "c", [["t", 0]])],
        *[("begin", "p"), sending("p", 1), ("commit_transaction", "p"), ("committed", "c", [["t", 0]])],
    ],
    "of two pending offsets the younger one stays, whichever is committed first": [
        *[
            TOPIC,
            *grouped("c", "g"),
            *writing("p", "x"),
            *writing("q", "y"),
            sending("p", 5),
            sending("q", 7),
        ],
        *[("commit_transaction", "q"), shown("g"), ("commit_transaction", "p"), shown("g")],
    ],
    "a group that is deleted while an offset is pending has none after the commit": [
        *[TOPIC, *grouped("c", "g"), ("commit", "c", [["t", 0, 1, ""]]), *writing("p", "x"), sending("p", 5)],
        *[("delete_group", "g"), ("committed", "c", [["t", 0]]), ("commit_transaction", "p"), shown("g")],
        *[("describe_group", "g"), ("begin", "p"), sending("p", 6), ("delete_group", "g")],
        *[sending("p", 7), ("commit_transaction", "p"), shown("g"), ("delete_group", "g"), shown("g")],
        ("delete_group", "g"),
    ],
    "a pending offset of a topic that is deleted is gone with it": [
        *[TOPIC, ("create_topic", "u", 1, {}), *grouped("c", "g"), *writing("p", "x")],
        *[sending("p", 5), sending("p", 6, topic="u"), ("delete_topic", "t"), ("commit_transaction", "p")],
        *[shown("g"), TOPIC, shown("g"), shown("g", "u")],
    ],
    "offsets of a topic that is gone fail when the time is up, and the transaction has to be aborted": [
        *[TOPIC, ("create_topic", "u", 1, {}), *grouped("c", "g"), ("commit", "c", [["t", 0, 1, ""]])],
        *[*writing("p", "x"), ("delete_topic", "t"), sending("p", 5), ("commit_transaction", "p")],
        *[
            ("abort_transaction", "p"),
            ("begin", "p"),
            sending("p", 6, topic="u"),
            ("commit_transaction", "p"),
        ],
        *[shown("g"), shown("g", "u")],
    ],
    "one transaction commits offsets of several groups, or of none": [
        *[TOPIC, *grouped("c", "g"), *grouped("d", "h"), *writing("p", "x")],
        *[sending("p", 1), sending("p", 2, "h"), shown("g"), ("commit_transaction", "p"), shown("g")],
        *[shown("h"), ("begin", "p"), sending("p", 3), sending("p", 4, "h"), ("abort_transaction", "p")],
        *[shown("g"), shown("h")],
    ],
    "a stranger to a group with members may commit in a transaction only": [
        *[TOPIC, ("consumer", "a", "g", EARLIEST), ("subscribe", "a", ["t"]), *grouped("c", "g")],
        *[
            ("commit", "c", [["t", 0, 1, ""]]),
            *writing("p", "x"),
            sending("p", 2),
            ("commit_transaction", "p"),
        ],
        *[shown("g"), ("consumer", "b", "h", {**EARLIEST, "group.protocol": "consumer"})],
        *[("subscribe", "b", ["t"]), *grouped("d", "h"), ("commit", "d", [["t", 0, 1, ""]])],
        *[("begin", "p"), sending("p", 3, "h"), ("commit_transaction", "p"), shown("h")],
    ],
    "an open transaction ends the log for those who read committed records, and for nobody else": [
        *[TOPIC, *writing("p", "x"), ("producer", "q", None), record("q", "1"), ("flush", "q")],
        *[record("p", "2"), ("flush", "p"), record("q", "3"), ("flush", "q")],
        *[("list_offsets", "t", 0, "latest", committed) for committed in (True, False)],
        *[("consumer", "c", "g", EARLIEST), AT_START, ("read", "c"), ("watermarks", "c", "t", 0)],
        *[("consumer", "d", "g", UNCOMMITTED), ("assign", "d", [["t", 0, 0]]), ("read", "d")],
        *[("watermarks", "d", "t", 0), ("abort_transaction", "p"), ("read", "c"), ("read", "d")],
        *[("list_offsets", "t", 0, "latest", committed) for committed in (True, False)],
    ],
    "a producer's start aborts what its predecessor has left open, and waits for all markers": [
        *[("create_topic", "t", 3, {}), *grouped("c", "g"), ("commit", "c", [["t", 0, 1, ""]])],
        *[*writing("p", "x"), *[record("p", str(n), partition=n) for n in range(3)], ("flush", "p")],
        *[sending("p", 5), ("producer", "q", "x"), ("init", "q"), ("committed", "c", [["t", 0]])],
        *[
            ("assign", "c", [["t", 0, 0], ["t", 1, 0], ["t", 2, 0]]),
            ("read", "c"),
            ("commit_transaction", "p"),
        ],
    ],
    "a commit that has timed out has to be repeated before any other call": [
        *[TOPIC, *grouped("c", "g"), *writing("p", "x"), record("p", "1"), record("p", "2")],
        *[("commit_transaction", "p", 0), record("p", "3"), sending("p", 1), ("begin", "p"), ("init", "p")],
        *[("abort_transaction", "p"), ("commit_transaction", "p"), ("begin", "p"), AT_START, ("read", "c")],
    ],
    "a start that has timed out has to be repeated before any other call": [
        *[TOPIC, *grouped("c", "g"), ("producer", "p", "x"), ("init", "p", 0), ("begin", "p")],
        *[("commit_transaction", "p"), ("abort_transaction", "p"), ("init", "p"), ("begin", "p")],
    ],
    "a record that is too large for its topic has the next transaction fail, too": [
        *[("create_topic", "t", 1, {"max.message.bytes": "1000"}), ("consumer", "c", "g", {}), AT_START],
        *[*writing("p", "x"), record("p", "1"), ("flush", "p"), record("p", 1500), record("p", "2")],
        *[("commit_transaction", "p"), ("abort_transaction", "p"), ("begin", "p"), record("p", "3")],
        *[("commit_transaction", "p"), ("abort_transaction", "p"), ("begin", "p"), record("p", "4")],
        *[("commit_transaction", "p"), ("read", "c")],
    ],
}


TRIES_WITHOUT_TIME = 4
"""librdkafka does not count a commit as begun that its own thread did not take up in no time (1 in 40)."""


def has_call_without_time(script: Script) -> bool:
    """Return whether a transactional call of the script has a timeout of 0 seconds."""
    return any(call[0] in ("init", "commit_transaction") and call[2:] == (0,) for call in script)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_both_kafkas_show_the_same(bootstrap: str, admin: AdminClient, script: Script):
    difference = compare(script, bootstrap, admin, f"conformance-{uuid.uuid4().hex[:12]}")
    for _ in range(TRIES_WITHOUT_TIME - 1 if has_call_without_time(script) else 0):
        if difference is not None:
            difference = compare(script, bootstrap, admin, f"conformance-{uuid.uuid4().hex[:12]}")
    assert difference is None, difference


def offsets_behind_a_transaction_s(backoff: dict[str, int]) -> float:
    """Return how long offsets take in virtual time whose last transaction has no marker for 20 ms."""
    kernel = Kernel()
    world = SimulatedWorld(kernel, Cluster(kernel))
    world.cluster.transactions.marker_delay_s = lambda: 0.02
    world.cluster.create_topic("t", 1)
    taken: list[float] = []

    def run() -> None:
        consumer = world.consumer({"group.id": "g"}, logging.getLogger())
        producer = world.producer({"transactional.id": "x", **backoff}, logging.getLogger())
        producer.init_transactions()
        for _ in range(2):
            producer.begin_transaction()
            begun_s = kernel.now_s
            offsets = [TopicPartition("t", 0, 1)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            taken.append(kernel.now_s - begun_s)
            producer.commit_transaction()

    task = kernel.spawn(kernel.process("p"), run, "main")
    kernel.run(lambda: task.is_done)
    kernel.close()
    return taken[1]


def test_offsets_sent_behind_an_ending_transaction_wait_for_the_producers_back_off():
    assert offsets_behind_a_transaction_s({"retry.backoff.ms": 5}) < 0.04
    assert 0.1 < offsets_behind_a_transaction_s({}) < 0.12
