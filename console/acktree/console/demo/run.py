"""Runs the demo: text in, Spark, worker and ackers on a real broker, one kill, and a check of the counts."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka.admin import NewTopic
from rich.console import Console
from rich.table import Table

from acktree.console.demo.account import AccountLine, committed_offsets, counted_words, differing
from acktree.console.demo.children import ChildFailed, ChildProcess
from acktree.console.demo.progress import ProgressView
from acktree.console.demo.text import count_words, library_lines, split
from acktree.console.devbroker.broker import LocalBroker
from acktree.core.kafka.clients import make_admin, make_producer, produce_when_room
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import producer_settings
from acktree.core.temporary_folder import temporary_folder
from acktree.core.topology.file import Topology, load_topology
from acktree.core.topology.publish import apply_topology
from acktree.wire.errors import AcktreeError

TOPIC = "lines"
CHECKPOINT = "checkpoint"
PARTITIONS = 4
FAIL_EVERY = 1_000
KILL_AT = 0.3
LIMIT_S = 900.0
SPARK, PYTHON = "spark", "python"
"""What runs the stage: Spark, or a process in Python."""


class WrongCounts(AcktreeError):
    """The demo's counts do not match the text that was sent."""


def wordcount_folder() -> Path:
    """Return the folder of the example that the demo runs, in a checkout or in an installed package."""
    here = Path(__file__).resolve()
    for folder in (here.parents[4] / "examples" / "wordcount", here.parent / "wordcount"):
        if (folder / "topology.toml").is_file():
            return folder
    raise ChildFailed("the wordcount example is not installed; run the demo from a checkout")


@dataclass(slots=True)
class SentText:
    """The text that was sent: lines by partition, in offset order."""

    lines: list[str]
    partitions: list[list[str]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def failures(self) -> int:
        """Return how many lines the worker is going to fail on their first attempt."""
        return sum(bool(split(line)) for lines in self.partitions for line in lines[::FAIL_EVERY])


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of a demo: the account, and how long the records took."""

    lines: list[AccountLine]
    records: int
    seconds: float

    @property
    def holds(self) -> bool:
        return all(line.holds for line in self.lines)

    def to_json(self) -> dict[str, object]:
        account = [{**asdict(line), "holds": line.holds} for line in self.lines]
        return {"records": self.records, "seconds": round(self.seconds, 3), "account": account}


def with_small_max_pending(topology: Topology, lines: int) -> Topology:
    """Return the topology with a max pending that spreads even a short text over several batches."""
    limit = topology.spouts["lines"].max_pending
    spout = topology.spouts["lines"].model_copy(update={"max_pending": max(1, min(limit, lines // 8))})
    return topology.model_copy(update={"spouts": {"lines": spout}})


def send_text(bootstrap: str, lines: list[str]) -> SentText:
    """Send the text to the source topic, line n to partition n mod PARTITIONS, and wait for the broker."""
    sent = SentText(lines)
    producer = make_producer(producer_settings(bootstrap, {}))
    for number, line in enumerate(sent.lines):
        partition = number % PARTITIONS
        produce_when_room(producer, TOPIC, line.encode(), partition=partition)
        sent.partitions[partition].append(line)
    if left := producer.flush(60):
        raise ChildFailed(f"the broker did not accept {left} lines of the text")
    return sent


def run_demo(console: Console, limit: int | None, engine: str = SPARK) -> DemoResult:
    """Run it all, with Spark or Python for the stage, show the account and return it."""
    started_s = time.monotonic()
    with ExitStack() as stack:
        home = stack.enter_context(temporary_folder("demo"))
        console.print("starting a Kafka broker", highlight=False)
        broker = stack.enter_context(LocalBroker())
        lines_sent = list(library_lines(limit))
        topology = with_small_max_pending(
            load_topology(wordcount_folder() / "topology.toml"), len(lines_sent)
        )
        admin = make_admin(broker.bootstrap, {})
        with clear_errors(broker.bootstrap):
            admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
        for line in apply_topology(broker.bootstrap, topology, {}).lines():
            console.print(f"  {line}", highlight=False)
        sent = send_text(broker.bootstrap, lines_sent)
        console.print(f"sent {len(sent.lines):,} lines of the Python standard library to topic {TOPIC}")
        console.print(
            f"watch it: acktree ui -b {broker.bootstrap} --topology {topology.name}",
            highlight=False,
            soft_wrap=True,
        )
        watch = ProgressView(console, broker.bootstrap, topology.stats_topic, len(sent.lines))
        with watch, _children(home, broker.bootstrap, topology, engine) as children:
            if engine == SPARK:
                seconds = _pipeline(watch, children, len(sent.lines), home / CHECKPOINT)
            else:
                seconds = _python_pipeline(watch, children, broker.bootstrap, topology, len(sent.lines))
        counts = watch.counts if engine == SPARK else None
        lines = account(broker.bootstrap, topology, sent, counts, home / "words.sqlite")
    show(console, lines, len(sent.lines), seconds, time.monotonic() - started_s)
    return DemoResult(lines, len(sent.lines), seconds)


@contextmanager
def _children(
    home: Path, bootstrap: str, topology: Topology, engine: str
) -> Iterator[dict[str, ChildProcess]]:
    folder = wordcount_folder()
    common = ["--topology", topology.name, "-b", bootstrap]
    environment = {
        "WORDCOUNT_DATABASE": str(home / "words.sqlite"),
        "WORDCOUNT_FAIL_EVERY": str(FAIL_EVERY),
        "PYTHONUNBUFFERED": "1",
    }
    spark = ["spark", "run", "split_lines:words", "--spout", "lines", "--trigger", "available-now"]
    stage = {
        SPARK: [*spark, "--checkpoint", str(home / CHECKPOINT), *common],
        PYTHON: ["spout", "run", "split_stage:words", *common],
    }
    commands = {
        "acker-1": ["acker", "run", *common],
        "acker-2": ["acker", "run", *common],
        "worker": ["bolt", "run", "count_words:CountWords", *common],
        engine: stage[engine],
    }
    children = {
        name: ChildProcess(name, command, folder, home / f"{name}.log", environment)
        for name, command in commands.items()
    }
    try:
        yield children
    finally:
        for child in reversed(children.values()):
            child.stop()


def _pipeline(watch: ProgressView, children: dict[str, ChildProcess], lines: int, checkpoint: Path) -> float:
    """Start everything, kill one acker on the way, wait for Spark to end.

    Return the seconds from the moment the first record was emitted until the last offset was committed.
    """
    for child in children.values():
        child.start()
    for name in ("acker-1", "acker-2", "worker", "spark"):
        children[name].wait_ready(lambda: watch.tick(0.05))
    watch.say("two ackers, a worker and the Spark application are ready")
    started_s = time.monotonic()
    spark, victim = children["spark"], children["acker-1"]
    killed = False
    while spark.exit_code is None:
        if time.monotonic() - started_s > LIMIT_S:
            raise ChildFailed(f"the text was not processed within {LIMIT_S:g} s:\n{spark.tail()}")
        watch.first_record_s = watch.first_record_s or first_record_s(checkpoint)
        watch.tick()
        if not killed and watch.counts["completed"] >= KILL_AT * lines:
            killed = True
            victim.kill()
            watch.say(f"killed acker-1 with signal 9 at {watch.counts['completed']:,} completed lines")
            victim.start()
            watch.say("started acker-1 again")
        for name in ("acker-1", "acker-2", "worker"):
            children[name].check_alive()
    if spark.exit_code:
        raise ChildFailed(f"the Spark application ended with code {spark.exit_code}:\n{spark.tail()}")
    watch.first_record_s = watch.first_record_s or first_record_s(checkpoint)
    watch.tick(1.0)
    assert watch.first_record_s is not None, "a query that has ended well has logged a batch"
    return watch.reported_s - watch.first_record_s


def _python_pipeline(
    watch: ProgressView, children: dict[str, ChildProcess], bootstrap: str, topology: Topology, lines: int
) -> float:
    """Start everything, kill an acker and the stage on the way, and wait for all offsets.

    Return the seconds from when everything was ready until the last offset was committed.
    """
    for child in children.values():
        child.start()
    for name in ("acker-1", "acker-2", "worker", PYTHON):
        children[name].wait_ready(lambda: watch.tick(0.05))
    watch.say("two ackers, a worker and the stage are ready")
    started_s = time.monotonic()
    victims, committed = ["acker-1", PYTHON], 0
    while committed < lines:
        if time.monotonic() - started_s > LIMIT_S:
            raise ChildFailed(f"the text was not processed within {LIMIT_S:g} s:\n{children[PYTHON].tail()}")
        watch.tick()
        _, committed = committed_offsets(bootstrap, topology.group_of("lines"), TOPIC, PARTITIONS)
        watch.committed(committed)
        if victims and committed >= KILL_AT * lines * (3 - len(victims)):
            victim = children[victims.pop(0)]
            victim.kill()
            watch.say(f"killed {victim.name} with signal 9 at {committed:,} committed lines")
            victim.start()
            watch.say(f"started {victim.name} again")
        for child in children.values():
            child.check_alive()
    seconds = time.monotonic() - started_s
    children[PYTHON].stop()
    return seconds


def first_record_s(checkpoint: Path) -> float | None:
    """Return when Spark logged the first batch, by the wall clock; None if it has not yet.

    Nothing is read before (life of a record, step 2), and the driver's last report is sent after its last
    commit: the time between the two holds all that happens to the records.
    """
    try:
        return (checkpoint / "offsets" / "0").stat().st_mtime
    except FileNotFoundError:
        return None


def account(
    bootstrap: str, topology: Topology, sent: SentText, counts: dict[str, int] | None, database: Path
) -> list[AccountLine]:
    """Return the account: what was sent against what Kafka, the reports and the database hold.

    ``counts`` are what the spout has reported; None where a process of it was killed, and with it its counts.
    """
    ends, committed = committed_offsets(bootstrap, topology.group_of("lines"), TOPIC, PARTITIONS)
    expected = count_words(sent.lines)
    stored, failed = counted_words(database)
    return [
        AccountLine("lines in the source topic", len(sent.lines), ends),
        AccountLine("source offsets committed", len(sent.lines), committed),
        *([] if counts is None else [AccountLine("lines completed", len(sent.lines), counts["completed"])]),
        *([] if counts is None else [AccountLine("lines pending", 0, counts["pending"])]),
        AccountLine("words counted", expected.total(), stored.total()),
        AccountLine("words whose count differs", 0, differing(expected, stored)),
        AccountLine("lines failed on purpose", sent.failures(), failed),
        *([] if counts is None else [AccountLine("lines replayed", failed, counts["replayed"])]),
    ]


def show(console: Console, lines: list[AccountLine], records: int, seconds: float, total_s: float) -> None:
    """Print the account and the rate."""
    table = Table("", "account", "expected", "found")
    for line in lines:
        table.add_row("✓" if line.holds else "✗", line.name, f"{line.expected:,}", f"{line.found:,}")
    console.print(table)
    rate = records / seconds
    cores = os.cpu_count()
    console.print(
        f"{records:,} lines in {seconds:.1f} s on {cores} cores: {rate:,.0f} lines/s; {total_s:.0f} s in all",
        highlight=False,
    )
