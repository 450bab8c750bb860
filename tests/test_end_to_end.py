"""The whole path: real text, Spark, a worker and two ackers as processes on a real broker, and a kill -9.

Whatever is killed, the account is exact: every source offset committed, every word counted once.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.demo.account import committed_offsets, counted_words
from acktree.console.demo.children import ChildProcess
from acktree.console.demo.run import wordcount_folder
from acktree.console.demo.text import count_words, library_lines
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.kafka.settings import consumer_settings, producer_settings
from acktree.core.reports.stats import Report, decode_report
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from deadlines import stretched
from three_brokers import BROKERS, three_brokers

pytestmark = pytest.mark.spark

LINES = 3_000
PARTITIONS, MANY_PARTITIONS = 2, 64
FAIL_EVERY = 100
DEADLINE_S = stretched(800)
POLL_S = 0.2
"""Each look makes a client and asks the broker, which costs the processes of the test their CPU."""
TOPOLOGY = """
name = "{name}"
ackers = {ackers}
message_timeout_s = {timeout_s}
[spouts.lines]
topics = ["{name}.source"]
emits = ["{name}.words"]
max_pending = 300
retry_initial_s = 0.1
[bolts.count]
reads = ["{name}.words"]
"""


@contextmanager
def pipeline(bootstrap: str, name: str, folder: Path, fail_every: int) -> Iterator[dict[str, ChildProcess]]:
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
        "WORDCOUNT_FAIL_EVERY": str(fail_every),
        "PYTHONUNBUFFERED": "1",
    }
    with ExitStack() as running:
        children = {}
        for child, command in commands.items():
            children[child] = ChildProcess(
                child, command, wordcount_folder(), folder / f"{child}.log", environment
            )
            running.callback(children[child].stop)
            children[child].start()
        yield children


def publish(bootstrap: str, name: str, *, ackers: int, timeout_s: int, more: str = "") -> None:
    text = more + TOPOLOGY.format(name=name, ackers=ackers, timeout_s=timeout_s)
    apply_topology(bootstrap, parse_topology(text), {})


def newest_report(bootstrap: str, name: str) -> Report:
    """Return what the spout said last."""
    consumer = make_consumer(consumer_settings(bootstrap, f"{name}.look", {}, enable_partition_eof=True))
    consumer.assign([TopicPartition(f"{name}.stats", 0, 0)])
    reports = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        reports.append(decode_report(message.value() or b""))
    consumer.close()
    return [report for report in reports if report.role == "spout"][-1]


def send(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> list[str]:
    lines = list(library_lines(LINES))
    producer = make_producer(producer_settings(bootstrap, {}))
    for number, line in enumerate(lines):
        producer.produce(topic, line, partition=number % partitions)
    assert producer.flush(30) == 0
    return lines


def check_running(children: dict[str, ChildProcess], deadline: float) -> None:
    """Fail, with what the processes said, if the time is up or Spark has ended; else give them some time."""
    assert time.monotonic() < deadline, {name: child.tail() for name, child in children.items()}
    assert children["spark"].exit_code is None, children["spark"].tail()
    time.sleep(POLL_S)


def await_end(children: dict[str, ChildProcess], deadline: float) -> None:
    """Wait until Spark has done everything; fail, with what the processes said, if the time is up."""
    while children["spark"].exit_code is None:
        assert time.monotonic() < deadline, {name: child.tail() for name, child in children.items()}
        time.sleep(0.1)
    assert children["spark"].exit_code == 0, children["spark"].tail()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("victim", "partitions"),
    [
        ("spark", PARTITIONS),
        pytest.param("acker-1", PARTITIONS, marks=pytest.mark.slow),
        pytest.param("worker", PARTITIONS, marks=pytest.mark.slow),
        pytest.param("spark", MANY_PARTITIONS, marks=pytest.mark.slow),
    ],
)
@pytest.mark.promise("1")
@pytest.mark.promise("3")
@pytest.mark.promise("4")
@pytest.mark.promise("the Spark driver")
def test_counts_are_exact_whichever_process_is_killed(
    bootstrap: str, unique: str, tmp_path: Path, victim: str, partitions: int
) -> None:
    topic, group = f"{unique}.source", f"{unique}.lines"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result()
    publish(bootstrap, unique, ackers=2, timeout_s=6)
    lines = send(bootstrap, topic, partitions)
    with pipeline(bootstrap, unique, tmp_path, FAIL_EVERY) as children:
        deadline = time.monotonic() + DEADLINE_S
        while committed_offsets(bootstrap, group, topic, partitions)[1] < LINES // 4:
            check_running(children, deadline)
        children[victim].kill()
        children[victim].start()
        await_end(children, deadline)
    assert committed_offsets(bootstrap, group, topic, partitions) == (LINES, LINES)
    assert newest_report(bootstrap, unique).values["pending"] == 0
    words, _failures = counted_words(tmp_path / "words.sqlite")
    assert words == count_words(lines)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("led", ["ack", "stats"])
def test_counts_are_exact_when_one_of_three_brokers_is_killed(unique: str, tmp_path: Path, led: str) -> None:
    """Acks get another leader; reports have one replica only, so from then on they have no leader."""
    topic, group = f"{unique}.source", f"{unique}.lines"
    with three_brokers(tmp_path) as cluster:
        bootstrap = cluster.bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        reports = f"{unique}.stats"
        for new in (NewTopic(topic, PARTITIONS, BROKERS), NewTopic(reports, 1, 1)):
            admin.create_topics([new])[new.topic].result()
        publish(
            bootstrap, unique, ackers=2, timeout_s=20, more="replication_factor = 3\nmin_insync_replicas = 2"
        )
        topics = admin.list_topics().topics
        own = [about for name, about in topics.items() if name.startswith(f"{unique}.") and name != reports]
        assert {len(about.partitions[0].replicas) for about in own} == {BROKERS}
        lines = send(bootstrap, topic)
        with pipeline(bootstrap, unique, tmp_path, FAIL_EVERY) as children:
            deadline = time.monotonic() + DEADLINE_S
            while committed_offsets(bootstrap, group, topic, PARTITIONS)[1] < LINES // 4:
                check_running(children, deadline)
            cluster.kill(cluster.leader(f"{unique}.{led}"))
            await_end(children, deadline)
            for name in ("acker-1", "acker-2", "worker"):
                children[name].check_alive()
        assert committed_offsets(bootstrap, group, topic, PARTITIONS) == (LINES, LINES)
    words, _failures = counted_words(tmp_path / "words.sqlite")
    assert words == count_words(lines)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_acker_count_changes_under_load_without_a_replay(
    bootstrap: str, unique: str, tmp_path: Path
) -> None:
    """Up and down again: old roots finish where they began. The worker rests until the driver knows of it."""
    topic, group = f"{unique}.source", f"{unique}.lines"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result()
    publish(bootstrap, unique, ackers=2, timeout_s=60)
    lines = send(bootstrap, topic)
    with pipeline(bootstrap, unique, tmp_path, 0) as children:
        deadline = time.monotonic() + DEADLINE_S
        for version, done, ackers in ((2, LINES // 5, 5), (3, LINES // 5 * 2, 1)):
            while committed_offsets(bootstrap, group, topic, PARTITIONS)[1] < done:
                check_running(children, deadline)
            children["worker"].stop()
            publish(bootstrap, unique, ackers=ackers, timeout_s=60)
            while newest_report(bootstrap, unique).values["version"] < version:
                check_running(children, deadline)
            children["worker"].start()
        await_end(children, deadline)
        for name in ("acker-1", "acker-2", "worker"):
            children[name].check_alive()
    assert committed_offsets(bootstrap, group, topic, PARTITIONS) == (LINES, LINES)
    assert counted_words(tmp_path / "words.sqlite") == (count_words(lines), 0)
    values = newest_report(bootstrap, unique).values
    assert (values["replayed"], values["timed_out"], values["pending"], values["version"]) == (0, 0, 0, 3)
