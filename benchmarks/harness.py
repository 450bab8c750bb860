"""What all benchmarks share: brokers, topologies with their processes, rounds, and tables of figures.

Invariant: whatever ends a run, SIGTERM and Ctrl-C included, what it started or made ends with it: processes,
topics, folders. Nothing is measured here; `clock.py` does that.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.console.demo.children import ChildProcess
from acktree.console.demo.run import wordcount_folder
from acktree.console.devbroker.broker import LocalBroker
from acktree.console.devbroker.owner import die_with_owner, leaving_on_signals
from acktree.core.edges import EdgeSource
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_admin, make_consumer, make_producer
from acktree.core.kafka.settings import consumer_settings, producer_settings
from acktree.core.temporary_folder import temporary_folder
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.wire.header import HEADER, SINGLE, single_headers
from acktree.wire.ids import generation_of, root_ids

HERE = Path(__file__).resolve().parent
ACKTREE = str(Path(sys.executable).with_name("acktree"))
FLUSH_S = 600.0
SHORT_DELETE_DELAY = {"log.segment.delete.delay.ms": "1000"}
"""Settings of a broker that frees what a run has filled before the next one is through."""
IMPORTABLE = os.pathsep.join([str(HERE), str(wordcount_folder()), os.environ.get("PYTHONPATH", "")])
"""PYTHONPATH of the processes of a deployment: `jobs.py` and the example's stage."""
Headers = list[tuple[str, str | bytes | None]]
Measured = TypeVar("Measured")


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        dest="bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get("ACKTREE_BOOTSTRAP_SERVER"),
        help="default: a broker of its own, gone afterwards",
    )
    return parser


def some_of(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what parses names with commas between them, for an option's ``type``."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names) - set(choices):
            known = ", ".join(choices)
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {known}")
        return names

    return parse


class Deployment:
    """A published topology under a unique name, and its processes that run in ``folder``."""

    def __init__(self, bootstrap: str, name: str, folder: Path, running: ExitStack) -> None:
        self.bootstrap, self.name, self.folder, self._running = bootstrap, name, folder, running
        self._children = 0

    def child(self, *command: str) -> ChildProcess:
        """Return `acktree COMMAND` for this topology, to be started; it ends with the deployment."""
        self._children += 1
        at = ["--topology", self.name, "-b", self.bootstrap]
        log = self.folder / f"{self._children}-{command[0]}.log"
        child = ChildProcess(command[0], [*command, *at], self.folder, log, {"PYTHONPATH": IMPORTABLE})
        self._running.callback(child.stop)
        return child

    def start(self, *command: str) -> ChildProcess:
        """Start `acktree COMMAND` and wait until it is ready."""
        child = self.child(*command)
        child.start()
        child.wait_ready(lambda: None)
        return child

    def consumer(self, group: str) -> Consumer:
        """Return a consumer for offsets of the topology's group of this name; it is closed at the end."""
        consumer = make_consumer(consumer_settings(self.bootstrap, f"{self.name}.{group}", {}))
        self._running.callback(consumer.close)
        return consumer

    def headers(self) -> Callable[[int, int], Iterator[Headers]]:
        """Return a function of (first, count): the headers of ``count`` tuples, each in its own tree."""
        version, edges = read_history(self.bootstrap, self.name, {}).latest.version, EdgeSource()

        def of(first: int, count: int) -> Iterator[Headers]:
            roots = root_ids(0, generation_of(1, 0), np.arange(first, first + count))
            packed = single_headers(version, version, roots, edges.many(count)).tobytes()
            for at in range(0, len(packed), SINGLE.itemsize):
                yield [(HEADER, packed[at : at + SINGLE.itemsize])]

        return of


class Cluster:
    """The Kafka that is measured; of a broker of our own its process, and the folder with its logs."""

    def __init__(self, bootstrap: str, broker_pid: int | None = None, logs: Path | None = None) -> None:
        self.bootstrap, self.broker_pid, self.logs = bootstrap, broker_pid, logs
        self._admin = make_admin(bootstrap, {})

    def producer(self, **settings: Any) -> Producer:
        """Return a producer with librdkafka's settings, which have underscores for dots here."""
        return make_producer(producer_settings(self.bootstrap, {}, **settings))

    def consumer(self, **settings: Any) -> Consumer:
        """Return a consumer that belongs to no topology, with settings as those of ``producer``."""
        return make_consumer(consumer_settings(self.bootstrap, f"{new_name()}.reader", {}, **settings))

    def log_bytes(self, topic: str) -> int:
        """Return the size of a topic's logs at a broker of our own, without indexes."""
        assert self.logs is not None
        return sum(log.stat().st_size for log in self.logs.glob(f"{topic}-[0-9]*/*.log"))

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        new = NewTopic(topic, partitions, config=dict(config or {}))
        self._admin.create_topics([new])[topic].result()

    def delete_topics(self, name: str) -> None:
        """Delete a topology's topics, and others whose names begin as they do."""
        topics = self._admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
        if names := [topic for topic in topics if topic.startswith(f"{name}.")]:
            for deleted in self._admin.delete_topics(names, operation_timeout=120).values():
                deleted.result()

    @contextmanager
    def deployment(
        self, text: str, sources: Mapping[str, int] | None = None, config: Mapping[str, str] | None = None
    ) -> Iterator[Deployment]:
        """Publish a topology, with source topics NAME.SOURCE of these partition counts, all of one config."""
        topology = parse_topology(text)
        with ExitStack() as running:
            running.callback(self.delete_topics, topology.name)
            for source, partitions in (sources or {}).items():
                self.create_topic(f"{topology.name}.{source}", partitions, config)
            apply_topology(self.bootstrap, topology, {})
            folder = running.enter_context(temporary_folder("bench"))
            yield Deployment(self.bootstrap, topology.name, folder, running)


@contextmanager
def cluster(asked: argparse.Namespace) -> Iterator[Cluster]:
    """Print what is measured on, and yield the Kafka of the user's choice or one of our own."""
    print(f"machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    with leaving_on_signals(), ExitStack() as running:
        if asked.bootstrap:
            yield Cluster(asked.bootstrap)
        else:
            folder = running.enter_context(temporary_folder("broker"))
            broker = running.enter_context(LocalBroker(data_dir=folder, settings=SHORT_DELETE_DELAY))
            yield Cluster(broker.bootstrap, broker.pid, folder / "data")


def new_name() -> str:
    """Return a name for a topology that no other run has."""
    return f"bench-{uuid.uuid4().hex[:8]}"


def produce(producer: Producer, topic: str, value: bytes, **more: Any) -> None:
    """Queue a record, when there is room for it."""
    while True:
        try:
            producer.produce(topic, value, **more)
            return
        except BufferError:
            producer.poll(0.05)


def flush(producer: Producer) -> None:
    """Wait until all is in the log."""
    assert producer.flush(FLUSH_S) == 0


def committed_offset(consumer: Consumer, topic: str) -> int:
    """Return the committed offset of partition 0 of a topic, 0 if there is none."""
    (place,) = consumer.committed([TopicPartition(topic, 0)], timeout=BROKER_TIMEOUT_S)
    return max(0, place.offset)


def wait_until(condition: Callable[[], bool], limit_s: float, what: str, poll_s: float = 0.05) -> float:
    """Wait until a condition holds; return when, by the monotonic clock. AssertionError after ``limit_s``."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {limit_s:g} s: {what}"
        time.sleep(poll_s)
    return time.monotonic()


def run_script(script: str, *words: object, environment: Mapping[str, str] | None = None) -> Any:
    """Run a benchmark in a separate process to its end; return its last line, parsed as JSON."""
    command = [sys.executable, script, *map(str, words)]
    environment = {**os.environ, **(environment or {})}
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, preexec_fn=die_with_owner()
    )
    return json.loads(done.stdout.splitlines()[-1])


def in_turn(
    kinds: Mapping[str, Callable[[], Measured]], rounds: int, warm_up_rounds: int = 0
) -> dict[str, list[Measured]]:
    """Run all kinds once a round, after rounds that do not count."""
    runs: dict[str, list[Measured]] = {kind: [] for kind in kinds}
    for number in range(warm_up_rounds + rounds):
        for kind, measure in kinds.items():
            run = measure()
            if number >= warm_up_rounds:
                runs[kind].append(run)
    return runs


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return median, least and greatest."""
    return median(values), min(values), max(values)


class Table:
    """Prints figures in columns, line by line as they come; the first column is text."""

    def __init__(self, *columns: str) -> None:
        first, *others = columns
        self._widths = [max(36, len(first)), *(max(9, len(column)) for column in others)]
        self.row(*columns)

    def row(self, *cells: str | float) -> None:
        first, *others = zip(map(_text, cells), self._widths, strict=True)
        line = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
        print("  ".join(line), flush=True)


def _text(cell: str | float) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.2f}"
