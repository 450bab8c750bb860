"""Readers of logs on real brokers whose logs are damaged, cut off, held back or without a leader.

Holds them to the table of docs/guarantees.md, as ``simulated/test_log_kinds.py`` does without a broker.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from acktree.console.demo.children import ChildProcess
from acktree.console.devbroker.broker import LocalBroker
from acktree.core.kafka.clients import make_admin, make_producer
from acktree.core.kafka.errors import is_transient
from acktree.core.reports.stats import decode_report
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from deadlines import ANSWER_S, stretched
from log_segment import LogSegment
from producers.cluster import WorkerCluster, until
from three_brokers import ThreeBrokers, three_brokers

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]

PARTITIONS, EACH = 2, 4
DEADLINE_S = stretched(40)
TOPOLOGY = """
name = "{name}"
ackers = 2
message_timeout_s = 8
{more}
[spouts.split]
topics = ["{name}.lines"]
emits = ["{name}.words"]
max_attempts = 50
retry_initial_s = 0.1
[bolts.count]
reads = ["{name}.words"]
"""
APP = """
from acktree.producers import Child, bolt, stage

@stage(reads="{name}.lines", emits="{name}.words")
def split(line: bytes) -> list[Child]:
    return [Child(line, key=line)]

def split_in_spark(lines):
    return lines.selectExpr("value", "value as key", "anchors")

@bolt(reads="{name}.words")
def count(word: bytes) -> None:
    with open("executed", "ab") as executed:
        executed.write(word + b"\\n")
"""
COMMANDS = {
    "stage": ["spout", "run", "app:split"],
    "spark": ["spark", "run", "app:split_in_spark", "--spout", "split", "--checkpoint", "checkpoint"],
    "worker": ["bolt", "run", "app:count"],
    "acker": ["acker", "run"],
}
READS = {
    "stage": ("lines", "split"),
    "spark": ("lines", "split"),
    "worker": ("words", "count"),
    "acker": ("ack", "acker"),
}
"""The topic that a reader reads, and its group."""
ROLES = {"stage": "spout", "spark": "spout", "worker": "bolt", "acker": "acker"}
SOURCES = ("stage", "spark")
LOSSY = "--option", "failOnDataLoss=false"
READERS = pytest.mark.parametrize(
    "reader", ["stage", pytest.param("spark", marks=pytest.mark.spark), "worker", "acker"]
)


def answered(ask: Callable[[], Any]) -> Any:
    """Return what a broker answers, once it does: one that starts loads groups and partitions."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if not is_transient(error.args[0]) or time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


class Running:
    """A topology in processes: lines that are written, what the bolt has executed, what is committed."""

    def __init__(self, bootstrap: str, name: str, folder: Path, reader: str, more: str = "") -> None:
        self.bootstrap, self.name, self.folder, self.reader = bootstrap, name, folder, reader
        topic, group = READS[reader]
        self.topic, self.group = f"{name}.{topic}", f"{name}.{group}"
        self.source = "spark" if reader == "spark" else "stage"
        self.cluster = WorkerCluster(bootstrap, name)
        self.admin = make_admin(bootstrap, {})
        (folder / "app.py").write_text(APP.format(name=name))
        (folder / "executed").touch()
        self.lines: dict[tuple[int, int], bytes] = {}
        """By partition and offset; what the log has lost is taken out."""
        self.children: dict[str, ChildProcess] = {}
        self._more = more
        self.ended: list[str] = []

    def create(self, topic: str, **placed: Any) -> None:
        new = NewTopic(f"{self.name}.{topic}", PARTITIONS, **placed)
        self.admin.create_topics([new])[new.topic].result(ANSWER_S)

    def apply(self) -> None:
        text = TOPOLOGY.format(name=self.name, more=self._more)
        until(lambda: f"{self.name}.lines" in self.admin.list_topics(timeout=ANSWER_S).topics, "the topic")
        apply_topology(self.bootstrap, parse_topology(text), {})

    def start(self, role: str, *more: str) -> ChildProcess:
        command = [*COMMANDS[role], "--topology", self.name, "-b", self.bootstrap, *more]
        self.children[role] = ChildProcess(role, command, self.folder, self.folder / f"{role}.log", {})
        self.children[role].start()
        return self.children[role]

    def start_all(self) -> None:
        for role in (self.source, "worker", "acker"):
            self.start(role)

    def stop(self, role: str) -> None:
        self.children.pop(role).stop()

    def close(self) -> None:
        for role in [*self.children]:
            self.stop(role)

    def send(
        self, label: str, topic: str = "lines", at: tuple[int, ...] = (0, 1), count: int = EACH, to: str = ""
    ) -> None:
        """Write lines, or tuples without a header, to some partitions, a batch for each."""
        producer = make_producer({"bootstrap.servers": to or self.bootstrap, "acks": "all"})
        for number in range(count):
            for partition in at:
                value = b"%s-%d-%d" % (label.encode(), partition, number)
                delivered: list[tuple[Any, Any]] = []
                producer.produce(
                    f"{self.name}.{topic}",
                    value,
                    partition=partition,
                    on_delivery=lambda *report, delivered=delivered: delivered.append(report),
                )
                assert producer.flush(DEADLINE_S) == 0
                ((error, message),) = delivered
                assert error is None, error
                if topic == "lines":
                    self.lines[partition, message.offset()] = value

    def lose(self, offsets: range) -> None:
        """Expect nothing more of some lines, if these are what happened to them."""
        if self.reader in SOURCES:
            self.lines = {at: line for at, line in self.lines.items() if at[0] or at[1] not in offsets}

    def executed(self) -> set[bytes]:
        return {*(self.folder / "executed").read_bytes().split()}

    def end(self, partition: int, topic: str = "") -> int:
        place = TopicPartition(topic or self.topic, partition)
        asked = {place: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        return int(answered(lambda: self.admin.list_offsets(asked)[place].result(ANSWER_S)).offset)

    def committed(self, partition: int, topic: str = "", group: str = "") -> int:
        place = TopicPartition(topic or self.topic, partition)
        asked = ConsumerGroupTopicPartitions(group or self.group, [place])
        offsets = self.admin.list_consumer_group_offsets
        found = answered(lambda: offsets([asked])[asked.group_id].result(ANSWER_S))
        return max(int(found.topic_partitions[0].offset), 0)

    def tend(self) -> None:
        """Start again what has ended, as whoever runs processes does; fail if it is the reader."""
        for role, child in [*self.children.items()]:
            if child.exit_code is not None:
                assert role != self.reader, child.tail()
                self.ended.append(f"{role}: {child.tail()}")
                child.start()

    def wait(self, holds: Callable[[], Any], what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not holds():
            tails = {role: child.tail() for role, child in self.children.items()}
            assert time.monotonic() < deadline_s, (what, tails, self.ended)
            self.tend()
            time.sleep(0.2)

    def check_commits(self) -> None:
        """Check that each line below a committed offset was executed."""
        committed = self.done_to()
        executed = self.executed()
        early = {at for at, line in self.lines.items() if at[1] < committed[at[0]] and line not in executed}
        assert not early, (early, committed)

    def done_to(self) -> list[int]:
        """Return up to where the lines of each partition are committed."""
        of = f"{self.name}.lines", f"{self.name}.split"
        return [self.committed(partition, *of) for partition in range(PARTITIONS)]

    def is_done(self) -> bool:
        return self.done_to() == [self.end(each, f"{self.name}.lines") for each in range(PARTITIONS)]

    def await_done(self) -> None:
        self.wait(self.is_done, "all lines are done")
        self.check_commits()
        assert self.executed() >= {*self.lines.values()}

    def said(self, text: str) -> bool:
        """Return whether the reader's log has a line that this expression matches."""
        log = self.folder / f"{self.reader}.log"
        return re.search(text, log.read_text()) is not None

    def await_read(self) -> None:
        """Wait until the reader has committed all of its log."""
        ends = [self.end(partition) for partition in range(PARTITIONS)]
        self.wait(
            lambda: [self.committed(each) for each in range(PARTITIONS)] == ends, "commits of the reader"
        )

    def await_said(self, text: str) -> None:
        self.wait(lambda: self.said(text), f"the line {text}")

    def await_counted(self, figure: str, value: int) -> None:
        self.wait(lambda: self._counted(figure) >= value, f"{figure} of {value} in a report")

    def _counted(self, figure: str) -> int:
        reports = [decode_report(each.value()) for each in self.cluster.read(f"{self.name}.stats")]
        return max((int(r.values.get(figure, 0)) for r in reports if r.role == ROLES[self.reader]), default=0)

    def stop_at_loss(self, sentence: str, begin: int) -> None:
        """Wait until a source that may lose nothing has ended; start it as one that may."""
        child = self.children.pop(self.reader)
        until(lambda: child.exit_code is not None, "the end of the reader", DEADLINE_S)
        assert child.exit_code == 2, child.tail()
        assert re.search(f"error: .*{sentence}", child.tail()), child.tail()
        self.check_commits()
        assert self.committed(0) <= begin
        self.start(self.reader, *LOSSY)

    def described(self) -> str:
        command = [sys.executable, "-m", "acktree.console.main", "describe", "--topology", self.name]
        ran = subprocess.run([*command, "-b", self.bootstrap], capture_output=True, text=True, check=False)
        return ran.stdout


@pytest.fixture
def broker(own_broker: Callable[..., LocalBroker], tmp_path: Path) -> LocalBroker:
    return own_broker(data_dir=tmp_path / "kafka")


@pytest.fixture
def t(broker: LocalBroker, reader: str, unique: str, tmp_path: Path) -> Iterator[Running]:
    """A topology whose lines before are done."""
    made = Running(broker.bootstrap, unique, tmp_path, reader)
    try:
        made.create("lines")
        made.apply()
        made.start_all()
        made.send("before")
        made.await_done()
        yield made
    finally:
        made.close()


def damaged(t: Running, segment: LogSegment, begin: int) -> range:
    batch = segment.batches(begin)[0]
    segment.damage(batch)
    return range(batch.first, batch.last + 1)


def removed(t: Running, segment: LogSegment, begin: int) -> range:
    """Do what retention does to a reader that was away for too long."""
    place = TopicPartition(t.topic, 0, segment.batches(begin)[-1].last + 1)
    t.admin.delete_records([place])[place].result(ANSWER_S)
    return range(begin, place.offset)


STOPS = {
    damaged: "{topic}/0: offsets {first} to {last} are damaged in the log and cannot be read",
    removed: "{topic}/0 (begins at offset {end}, but .* is at {first}|no longer holds offsets {first} to)",
}
SAID = {
    ("stage", damaged): "{topic}/0: offsets {first} to {last} are damaged in the log and cannot be read",
    ("spark", damaged): "{topic}/0: offsets {first} to {last} are damaged in the log and cannot be read",
    ("worker", damaged): r"records {topic}\[0\]@\d+ to {last} are damaged in the log",
    ("acker", damaged): "action=invalid_record record={topic}/0@{last} reason='damaged in the log'",
    ("stage", removed): r"{topic}/0: .*offset.* {first} (to|and) {last} are lost and counted as done",
    ("spark", removed): "{topic}/0: offsets {first} to {last} are lost and counted as done",
    ("worker", removed): r"records {topic}\[0\]@\d+ to {last} were removed before they were read",
    ("acker", removed): r"action=records_lost records {topic}\[0\]@\d+ to {last} were removed",
}
COUNTED = {
    ("stage", damaged): "lost",
    ("spark", damaged): "lost",
    ("worker", damaged): "invalid",
    ("acker", damaged): "invalid",
    ("stage", removed): "lost",
    ("spark", removed): "lost",
}


@READERS
@pytest.mark.parametrize("happens", [damaged, removed])
def test_records_that_cannot_be_read_are_said_and_counted_and_all_behind_them_are_done(
    t: Running, broker: LocalBroker, tmp_path: Path, happens: Any
) -> None:
    begin = t.end(0)
    t.stop(t.reader)
    t.send("meanwhile")
    segment = LogSegment(tmp_path / "kafka", t.topic, 0)
    t.wait(lambda: segment.batches(begin), "records for the reader")
    gone = happens(t, segment, begin)
    t.lose(gone)
    places = {
        "topic": re.escape(t.topic),
        "begin": begin,
        "first": gone[0],
        "last": gone[-1],
        "end": gone.stop,
    }
    t.start(t.reader)
    if t.reader in SOURCES:
        t.stop_at_loss(STOPS[happens].format_map(places), gone.start)
    t.send("behind")
    t.await_done()
    t.await_said(SAID[t.reader, happens].format_map(places))
    if figure := COUNTED.get((t.reader, happens)):
        t.await_counted(figure, 1)


FELL = {
    "stage": "{topic}/0 ended at offset {begin}, below",
    "spark": "{topic}/0 ended at offset {begin}, below",
    "worker": r"{topic}\[0\] ends at offset {begin}, below \d+: reading continues at the end",
    "acker": r"action=log_end_fell {topic}\[0\] ends at offset {begin}, below",
}


@READERS
def test_a_log_that_ends_lower_than_it_was_read_is_said_and_what_is_written_then_is_done(
    t: Running, broker: LocalBroker, tmp_path: Path
) -> None:
    begin = t.end(0)
    t.send("lost")
    t.await_done()
    t.await_read()
    if t.reader == "spark":
        t.stop("spark")  # or it would end, as a query does whose broker is away
    broker.kill()
    LogSegment(tmp_path / "kafka", t.topic, 0).cut(begin)
    broker.start()
    t.lose(range(begin, sys.maxsize))
    if t.reader == "spark":
        t.start("spark")
    place = {"topic": re.escape(t.topic), "begin": begin}
    if t.reader in SOURCES:
        t.stop_at_loss("{topic}/0 (ends|ended) at offset {begin}, but".format_map(place), sys.maxsize)
    else:
        t.await_said(FELL[t.reader].format_map(place))
    if t.reader == "spark":
        t.await_said("{topic}/0 ends at offset {begin}, below".format_map(place))
    t.send("behind")
    t.await_done()


@READERS
@pytest.mark.parametrize("is_away", [False, True], ids=["running", "away"])
def test_other_records_in_place_of_those_that_were_read_are_noticed_though_the_log_is_longer(
    t: Running, broker: LocalBroker, tmp_path: Path, is_away: bool
) -> None:
    """They are written while nobody who had read the others can look; ``is_away``: another process starts.

    A query in Spark ends where its broker is away for long, and starts again.
    """
    is_away |= t.reader == "spark"
    if t.reader in SOURCES:
        t.stop(t.reader)
        t.start(t.reader, *LOSSY)
    begin = t.end(0)
    t.send("lost")
    t.await_done()
    t.await_read()
    end = t.end(0)
    if is_away:
        t.stop(t.reader)
    broker.kill()
    LogSegment(tmp_path / "kafka", t.topic, 0).cut(begin)
    t.lose(range(begin, sys.maxsize))
    topic = t.topic.removeprefix(f"{t.name}.")
    with LocalBroker(data_dir=tmp_path / "kafka") as elsewhere:
        t.send("instead", topic, (0,), end - begin + EACH, to=elsewhere.bootstrap)
    broker.start()
    if is_away:
        t.start(t.reader, *(LOSSY if t.reader in SOURCES else ()))
    t.await_said(FELL[t.reader].format_map({"topic": re.escape(t.topic), "begin": begin}))
    t.send("behind")
    t.await_done()
    if t.reader == "worker":
        t.wait(lambda: b"instead-0-%d" % (end - begin + EACH - 1) in t.executed(), "what is there instead")


@READERS
@pytest.mark.parametrize("is_aborted", [True, False], ids=["aborted", "committed"])
def test_an_open_transaction_holds_back_what_is_behind_it_in_its_partition_until_it_ends(
    t: Running, tmp_path: Path, is_aborted: bool
) -> None:
    stranger = make_producer(
        {"bootstrap.servers": t.bootstrap, "transactional.id": t.name, "transaction.timeout.ms": 900_000}
    )
    stranger.init_transactions(ANSWER_S)
    stranger.begin_transaction()
    an_hour_ago_ms = int(time.time() - 3_600) * 1000  # or it is named only once it is half a minute old
    hidden, beside = t.end(0), t.end(1)
    stranger.produce(t.topic, b"stranger", partition=0, timestamp=an_hour_ago_ms)
    assert stranger.flush(ANSWER_S) == 0
    t.send("behind")
    t.wait(lambda: LogSegment(tmp_path / "kafka", t.topic, 0).batches(hidden + 1), "records behind it")
    if t.reader == "worker":
        t.wait(lambda: t.executed() & values(t, 1, beside), "tuples of the other partition")
        assert not {word for word in t.executed() if word.startswith(b"behind")} - values(t, 1, beside)
    else:
        t.wait(lambda: beside < t.committed(1) == t.end(1), "a commit of the other partition")
    t.wait(lambda: re.search(rf"{re.escape(t.topic)}/0.*transaction", t.described()), "its name in describe")
    assert t.committed(0) <= hidden
    assert t.done_to()[0] < t.end(0, f"{t.name}.lines")
    t.check_commits()
    if is_aborted:
        stranger.abort_transaction(ANSWER_S)
    else:
        stranger.commit_transaction(ANSWER_S)
        if t.reader in SOURCES:
            t.lines[0, hidden] = b"stranger"
    t.await_done()
    if t.reader != "acker":
        t.wait(lambda: is_aborted or b"stranger" in t.executed(), "the record of the stranger")
        assert is_aborted == (b"stranger" not in t.executed())
    elif not is_aborted:
        t.await_said(f"action=invalid_record record={re.escape(t.topic)}/0@{hidden}")


def values(t: Running, partition: int, start: int) -> set[bytes]:
    """Return the values of committed records of the reader's topic."""
    records = t.cluster.read(t.topic)
    return {each.value() for each in records if each.partition() == partition and each.offset() >= start}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with three_brokers(tmp_path_factory.mktemp("brokers")) as made:
        yield made


REPLICATED = "replication_factor = 3\nmin_insync_replicas = 2"


@READERS
def test_a_partition_whose_broker_is_away_holds_back_no_other_one_and_is_read_when_it_is_back(
    cluster: ThreeBrokers, reader: str, unique: str, tmp_path: Path
) -> None:
    topic, _ = READS[reader]
    t = Running(cluster.bootstrap, unique, tmp_path, reader, REPLICATED)
    try:
        t.create(topic, replica_assignment=[[1], [2]])
        if topic != "lines":
            t.create("lines", replication_factor=3)
        t.apply()
        t.start_all()
        t.send("before")
        t.await_done()
        cluster.kill(1)
        beside = t.committed(1)
        t.send("beside", "words" if reader == "worker" else "lines", (0, 1) if reader == "acker" else (1,))
        t.wait(lambda: t.committed(1) > beside, "a commit of the other partition")
        if reader == "worker":
            t.wait(lambda: b"beside-1-3" in t.executed(), "tuples of the other partition")
        if reader in SOURCES:
            t.wait(lambda: t.committed(1) == t.end(1), "all of the other partition")
            t.await_said(rf"{re.escape(t.topic)}/0 has no leader")
        t.check_commits()
        cluster.start_again(1)
        t.send("behind")
        t.await_done()
        if reader in SOURCES:
            t.await_said(rf"{re.escape(t.topic)}/0 has a leader again")
    finally:
        t.close()
