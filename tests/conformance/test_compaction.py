"""What a log cleaner leaves of a compacted topic, on both Kafkas."""

import uuid
from collections.abc import Callable
from itertools import takewhile

import pytest
from confluent_kafka.admin import AdminClient

from acktree.console.devbroker.broker import LocalBroker
from conformance.comparison import compare, run_simulated
from conformance.script import Script
from conformance.test_conformance_scripts import record
from conformance.topic_steps import SEGMENT_S

BROKER = {"log.cleaner.backoff.ms": "100"}
CLEAN = ("clean", "t", 0)
TRIES = 3
"""The broker's cleaner may pass in the middle of a step, too: one run of these has to show the same."""


def topic(**config: str) -> tuple:
    quick = {"segment.ms": f"{SEGMENT_S * 1000:.0f}", "min.cleanable.dirty.ratio": "0.0"}
    return "create_topic", "t", 1, {"cleanup.policy": "compact", **quick, **config}


def writing(*records: str) -> Script:
    """Return what writes records, each as key=value; a value of "-" is a tombstone."""
    pairs = [each.split("=") for each in records]
    found = [record("q", None if value == "-" else value, key) for key, value in pairs]
    return [("producer", "q", None), *found, ("flush", "q")]


READ: Script = [("assign", "c", [["t", 0, 0]]), ("read", "c")]
READER: Script = [("consumer", "c", "g", {}), *READ]
TRANSACTION: Script = [("producer", "p", "x"), ("init", "p"), ("begin", "p")]

CASES: dict[str, tuple[Script, list[str]]] = {
    "the newest record of each key stays, a tombstone like any other": (
        [topic(), *writing("a=1", "b=1", "a=2", "b=-", "c=1"), CLEAN, CLEAN, *READER],
        ["a=2", "b=None", "c=1"],
    ),
    "a tombstone goes when it was kept for delete.retention.ms": (
        [topic(**{"delete.retention.ms": "0"}), *writing("a=1", "b=1", "b=-"), CLEAN, CLEAN, *READER],
        ["a=1"],
    ),
    "the cleaner does not pass an open transaction": (
        [
            *[topic(), *TRANSACTION, *writing("a=1", "a=2"), CLEAN, record("p", "3", "a"), ("flush", "p")],
            *[record("q", "4", "a"), record("q", "5", "a"), ("flush", "q"), CLEAN],
            *[("consumer", "c", "g", {"isolation.level": "read_uncommitted"}), *READ],
        ],
        ["a=2", "a=3", "a=4", "a=5"],
    ),
    "records of an aborted transaction go, and outdate nothing": (
        [
            *[topic(), *TRANSACTION, *writing("a=1", "a=2"), record("p", "3", "a"), record("p", "3", "b")],
            *[("flush", "p"), ("abort_transaction", "p"), CLEAN],
            *[("consumer", "c", "g", {"isolation.level": "read_uncommitted"}), *READ],
        ],
        ["a=2"],
    ),
    "records of a committed transaction outdate older ones": (
        [
            *[topic(**{"delete.retention.ms": "0"}), *writing("a=1", "b=1"), *TRANSACTION],
            *[
                record("p", "2", "a"),
                record("p", None, "b"),
                ("commit_transaction", "p"),
                CLEAN,
                CLEAN,
                *READER,
            ],
        ],
        ["a=2"],
    ),
}


@pytest.mark.parametrize(("script", "left"), CASES.values(), ids=CASES)
def test_a_cleaned_log_holds_the_expected_records(script: Script, left: list[str]):
    found = run_simulated(script)[-1]["records"].get("t/0", [])
    assert [f"{key}={value}" for _, key, value, *_ in found if key != "roll"] == left


@pytest.mark.slow
def test_both_kafkas_leave_the_same_records(own_broker: Callable[..., LocalBroker]):
    bootstrap = own_broker(settings=BROKER).bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    for script, _ in CASES.values():
        names = [f"conformance-{uuid.uuid4().hex[:12]}" for _ in range(TRIES)]
        compared = (compare(script, bootstrap, admin, name) for name in names)
        differences = list(takewhile(lambda difference: difference is not None, compared))
        assert len(differences) < TRIES, differences
