"""The whole path: real text, Spark, a worker and two ackers as processes on a real broker, and a kill -9.

Whatever is killed, the account is exact: every source offset committed, every word counted once.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.demo.account import committed_offsets, counted_words
from acktree.console.demo.children import Child
from acktree.console.demo.run import wordcount_folder
from acktree.console.demo.text import count_words, library_lines
from acktree.schemas.clients import make_producer, producer_settings
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology

pytestmark = pytest.mark.spark

LINES = 3_000
PARTITIONS = 2
FAIL_EVERY = 100
DEADLINE_S = 150
TOPOLOGY = """
name = "{name}"
ackers = 2
message_timeout_s = 6
[spouts.lines]
topics = ["{name}.source"]
emits = ["{name}.words"]
max_pending = 600
retry_initial_s = 0.1
[bolts.count]
reads = ["{name}.words"]
"""


@contextmanager
def pipeline(bootstrap: str, name: str, folder: Path) -> Iterator[dict[str, Child]]:
    common = ["--topology", name, "-b", bootstrap]
    spark = ["spark", "run", "split_lines:words", "--spout", "lines", "--trigger", "available-now"]
    commands = {
        "acker-1": ["acker", "run", *common],
        "acker-2": ["acker", "run", *common],
        "worker": ["bolt", "run", "count_words:CountWords", *common],
        "spark": [*spark, "--checkpoint", str(folder / "checkpoint"), *common],
    }
    environment = {
        "WORDCOUNT_DATABASE": str(folder / "words.sqlite"),
        "WORDCOUNT_FAIL_EVERY": str(FAIL_EVERY),
        "PYTHONUNBUFFERED": "1",
    }
    with ExitStack() as running:
        children = {}
        for child, command in commands.items():
            children[child] = Child(child, command, wordcount_folder(), folder / f"{child}.log", environment)
            running.callback(children[child].stop)
            children[child].start()
        yield children


def send(bootstrap: str, topic: str) -> list[str]:
    lines = list(library_lines(LINES))
    producer = make_producer(producer_settings(bootstrap, {}))
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    return lines


@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["acker-1", "worker", "spark"])
def test_the_account_is_exact_whoever_is_killed(
    bootstrap: str, unique: str, tmp_path: Path, victim: str
) -> None:
    topic, group = f"{unique}.source", f"{unique}.lines"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result()
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=unique)), {})
    lines = send(bootstrap, topic)
    with pipeline(bootstrap, unique, tmp_path) as children:
        deadline = time.monotonic() + DEADLINE_S
        while committed_offsets(bootstrap, group, topic, PARTITIONS)[1] < LINES // 4:
            assert time.monotonic() < deadline, {name: child.tail() for name, child in children.items()}
            assert children["spark"].exit_code is None, children["spark"].tail()
        children[victim].kill()
        children[victim].start()
        while children["spark"].exit_code is None:
            assert time.monotonic() < deadline, {name: child.tail() for name, child in children.items()}
            time.sleep(0.1)
        assert children["spark"].exit_code == 0, children["spark"].tail()
    assert committed_offsets(bootstrap, group, topic, PARTITIONS) == (LINES, LINES)
    words, _failures = counted_words(tmp_path / "words.sqlite")
    assert words == count_words(lines)
