"""Upgrade and rollback under load: two versions of acktree side by side on one real broker.

    python tests/upgrade/check.py --base REF [--rate 500]

REF is the last release. Before the first one it is a commit with the same schemas and formats: nothing reads
those from before. The earlier version is what git has at REF, run with the packages of this environment. It
publishes a topology of the wordcount example, a spout in Python and an exactly-once bolt behind it, and runs
every role: two ackers, both workers, the spout and the Spark application. While lines and numbers are sent,
each role is replaced by this version alone, and goes back; then all are replaced, one after the other; then
each goes back alone, and is replaced again; then all go back. Processes end by SIGTERM and by SIGKILL in
turn. After each step both spouts must get on; at the end every line is committed and every word counted
exactly once, every number is acked and copied, and no emission of a number is copied twice.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from itertools import cycle, islice
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from acktree.console.demo.account import committed_offsets, counted_words
from acktree.console.demo.children import ChildProcess
from acktree.console.demo.run import wordcount_folder
from acktree.console.demo.text import count_words, library_lines
from acktree.console.devbroker.broker import LocalBroker
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.kafka.settings import consumer_settings, producer_settings
from acktree.core.temporary_folder import temporary_folder

HOUSE = Path(__file__).parents[2]
SOURCES = ("schemas", "producers", "acker_consumer", "spark_app", "console")
PARTITIONS, FAIL_EVERY = 2, 500
STEP_TIMEOUT_S = 180.0
TOPIC, TOPOLOGY, GROUP = "lines", "wordcount", "wordcount.lines"
TEXT = f"""
name = "{TOPOLOGY}"
ackers = 2
message_timeout_s = 10
[spouts.lines]
topics = ["{TOPIC}"]
emits = ["words"]
max_pending = 2000
retry_initial_s = 0.1
[bolts.count]
reads = ["words"]
[spouts.numbers]
topics = []
emits = ["numbers"]
max_pending = 500
[bolts.copy]
reads = ["numbers"]
emits = ["copies"]
exactly_once = true
"""
ROLES = {
    "acker-1": ["acker", "run"],
    "acker-2": ["acker", "run"],
    "worker": ["bolt", "run", "count_words:CountWords"],
    "copier": ["bolt", "run", "counting:CopyNumbers"],
    "numbers": ["spout", "run", "counting:CountUp"],
    "spark": ["spark", "run", "split_lines:words", "--spout", "lines"],
}
COUNTING = ("copier", "numbers")
"""Roles whose user code is in this folder."""
console = Console()


class SteadySender:
    """Sends lines at a steady rate until it is stopped; ``lines`` is what the broker has."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        self.lines: list[str] = []
        self._producer, self._rate = make_producer(producer_settings(bootstrap, {})), rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait until the broker has all."""
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(60)
        assert left == 0, f"the broker did not take {left} lines"

    def _run(self) -> None:
        text = cycle(library_lines(20_000))
        while not self._stopping.wait(0.1):
            for line in islice(text, self._rate // 10):
                self._producer.produce(TOPIC, line, partition=len(self.lines) % PARTITIONS)
                self.lines.append(line)
            self._producer.poll(0)


def earlier_version(ref: str, folder: Path) -> Path:
    """Put what git has at ``ref`` into a folder; return the folder."""
    done = subprocess.run(["git", "archive", ref, *SOURCES], cwd=HOUSE, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"git has no {ref}: {done.stderr.decode()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def this_version(folder: Path) -> Path:
    """Copy the packages of this version, so that whoever works on them meanwhile changes nothing here."""
    for source in SOURCES:
        shutil.copytree(HOUSE / source, folder / source)
    return folder


def paths(house: Path) -> dict[str, str]:
    """Return the environment in which Python finds a version's packages first."""
    return {"PYTHONPATH": os.pathsep.join(str(house / source) for source in SOURCES)}


class Side:
    """The processes of one version."""

    def __init__(self, name: str, house: Path, bootstrap: str, home: Path) -> None:
        self.name = name
        environment = paths(house) | {
            "WORDCOUNT_DATABASE": str(home / "words.sqlite"),
            "WORDCOUNT_FAIL_EVERY": str(FAIL_EVERY),
            "UPGRADE_FOLDER": str(home),
            "PYTHONUNBUFFERED": "1",
        }
        self._environment, self._bootstrap, self._home = environment, bootstrap, home
        at = ["--topology", TOPOLOGY, "-b", bootstrap]
        more = {"spark": ["--checkpoint", str(home / "checkpoint")]}
        self.children = {
            role: ChildProcess(
                role,
                [*command, *more.get(role, []), *at],
                Path(__file__).parent if role in COUNTING else wordcount_folder(),
                home / f"{name}-{role}.log",
                environment,
            )
            for role, command in ROLES.items()
        }

    def check_version(self, house: Path) -> None:
        """Fail unless Python finds the version's own packages."""
        code = "import acktree.core, acktree.spark; print(acktree.core.__file__, acktree.spark.__file__)"
        environment = {**os.environ, **self._environment}
        found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        files = found.stdout.split()
        assert len(files) == 2, found.stderr
        assert all(Path(file).is_relative_to(house) for file in files), files

    def apply(self) -> None:
        """Publish the topology with this version's own command."""
        file = self._home / "topology.toml"
        file.write_text(TEXT)
        command = [sys.executable, "-m", "acktree.console.main", "topology", "apply", str(file)]
        environment = {**os.environ, **self._environment}
        subprocess.run([*command, "-b", self._bootstrap], env=environment, check=True)


def steps(old: Side, new: Side) -> Iterator[tuple[str, Side, Side, bool]]:
    """Yield role, from, to, and whether by SIGKILL."""
    number = 0
    for before, after in ((old, new), (new, old)):
        alone = [move for role in ROLES for move in ((role, before, after), (role, after, before))]
        for role, leaving, coming in [*alone, *((role, before, after) for role in ROLES)]:
            yield role, leaving, coming, number % 2 == 1
            number += 1


class CountedNumbers:
    """What the spout in Python has begun and has been told of, and what its bolt has copied."""

    def __init__(self, bootstrap: str, home: Path) -> None:
        self._bootstrap, self._home = bootstrap, home

    def stop(self) -> None:
        """Let it begin no more numbers."""
        (self._home / "stop").touch()

    @property
    def begun(self) -> int:
        return int((self._home / "begun").read_text())

    @property
    def acked(self) -> set[int]:
        return {int(line) for line in (self._home / "acked").read_text().split()}

    def check(self) -> str:
        """Return a line of the account; end with an error where it is wrong."""
        copies = self._copies()
        emissions = Counter(copies)
        if twice := [copy for copy, count in emissions.items() if count > 1]:
            sys.exit(f"{len(twice)} emissions were copied twice, first {twice[0]}")
        if lost := set(range(self.begun)) - {int(copy.split()[0]) for copy in copies}:
            sys.exit(f"{len(lost)} numbers were acked and not copied, first {min(lost)}")
        return f"{self.begun:,} numbers, {len(copies):,} copies of {len(emissions):,} emissions"

    def _copies(self) -> list[str]:
        settings = consumer_settings(self._bootstrap, "account", {}, enable_partition_eof=True)
        consumer = make_consumer(settings)
        found: list[str] = []
        try:
            partitions = consumer.list_topics("copies", 10).topics["copies"].partitions
            consumer.assign([TopicPartition("copies", partition, 0) for partition in partitions])
            left = set(partitions)
            while left:
                for message in consumer.consume(10_000, 1.0):
                    if (error := message.error()) is None:
                        found.append(message.value().decode())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(message.partition())
                    else:
                        raise KafkaException(error)
        finally:
            consumer.close()
        return found


def run(old: Side, new: Side, bootstrap: str, load: SteadySender, numbers: CountedNumbers) -> None:
    """Go through all steps under load, and wait for the end of it."""
    active = dict.fromkeys(ROLES, old)

    def done() -> tuple[int, int]:
        return committed_offsets(bootstrap, GROUP, TOPIC, PARTITIONS)[1], len(numbers.acked)

    def await_progress(lines: int, acked: int, what: str) -> None:
        deadline_s = time.monotonic() + STEP_TIMEOUT_S
        while (now := done())[0] < lines or now[1] < acked:
            for role, side in active.items():
                side.children[role].check_alive()
            assert time.monotonic() < deadline_s, f"{what}: {now} of {lines} lines and {acked} numbers done"
            time.sleep(0.2)

    for role in ROLES:
        old.children[role].start()
        old.children[role].wait_ready(lambda: None)
    load.start()
    await_progress(1, 1, "the earlier version alone")
    for role, before, after, is_kill in steps(old, new):
        sent, begun = len(load.lines), numbers.begun
        (before.children[role].kill if is_kill else before.children[role].stop)()
        after.children[role].start()
        after.children[role].wait_ready(lambda: None)
        active[role] = after
        lines, acked = done()
        await_progress(max(sent, lines) + 1, max(begun, acked) + 1, f"{role} of {after.name}")
        how = "SIGKILL" if is_kill else "SIGTERM"
        lines, acked = done()
        console.print(
            f"{role}: {before.name} -> {after.name} by {how}; {lines:,} of {len(load.lines):,} lines, "
            f"{acked:,} of {numbers.begun:,} numbers done"
        )
    load.stop()
    numbers.stop()
    await_progress(len(load.lines), 0, "the end")
    while len(numbers.acked) < (begun := numbers.begun):  # it may have begun one more meanwhile
        await_progress(len(load.lines), begun, "the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--base", required=True, help="the earlier version, as git names it")
    parser.add_argument("--rate", type=int, default=500, help="lines a second")
    arguments = parser.parse_args()
    with ExitStack() as running:
        home = running.enter_context(temporary_folder("upgrade"))
        bootstrap = running.enter_context(LocalBroker()).bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
        earlier, this = earlier_version(arguments.base, home / "earlier"), this_version(home / "this")
        old, new = Side("earlier", earlier, bootstrap, home), Side("this", this, bootstrap, home)
        old.check_version(earlier)
        new.check_version(this)
        for side in (old, new):
            for child in side.children.values():
                running.callback(child.stop)
        old.apply()
        load, numbers = SteadySender(bootstrap, arguments.rate), CountedNumbers(bootstrap, home)
        run(old, new, bootstrap, load, numbers)
        words, failures = counted_words(home / "words.sqlite")
        wanted = count_words(load.lines)
        console.print(
            f"{len(load.lines):,} lines, {sum(words.values()):,} words, {failures} lines failed on purpose"
        )
        if words != wanted:
            sys.exit(
                f"the account is wrong: {sum(words.values())} words counted, {sum(wanted.values())} sent"
            )
        console.print(numbers.check())
        console.print("the account is exact")


if __name__ == "__main__":
    main()
