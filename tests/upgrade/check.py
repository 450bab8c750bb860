"""Upgrade and rollback under load: two versions of acktree side by side on one real broker.

    python tests/upgrade/check.py --base REF [--rate 500]

The earlier version is what git has at REF, run with the packages of this environment. It publishes the
topology of the wordcount example and runs every role: two ackers, a worker and the Spark application. Then
each role in turn is replaced by this version, by SIGTERM and by SIGKILL in turn, while lines are sent; then
each in turn goes back. After each step the frontier must move on; at the end every line is committed and
every word is counted exactly once.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from itertools import cycle, islice
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from acktree.console.demo.account import committed_offsets, counted_words
from acktree.console.demo.children import ChildProcess
from acktree.console.demo.run import wordcount_folder
from acktree.console.demo.text import count_words, library_lines
from acktree.console.devbroker.broker import LocalBroker
from acktree.schemas.client_settings import producer_settings
from acktree.schemas.clients import make_producer
from acktree.schemas.temporary_folder import temporary_folder

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
"""
ROLES = {
    "acker-1": ["acker", "run"],
    "acker-2": ["acker", "run"],
    "worker": ["bolt", "run", "count_words:CountWords"],
    "spark": ["spark", "run", "split_lines:words", "--spout", "lines"],
}
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
            "PYTHONUNBUFFERED": "1",
        }
        self._environment, self._bootstrap, self._home = environment, bootstrap, home
        at = ["--topology", TOPOLOGY, "-b", bootstrap]
        more = {"spark": ["--checkpoint", str(home / "checkpoint")]}
        self.children = {
            role: ChildProcess(
                role,
                [*command, *more.get(role, []), *at],
                wordcount_folder(),
                home / f"{name}-{role}.log",
                environment,
            )
            for role, command in ROLES.items()
        }

    def check_version(self, house: Path) -> None:
        """Fail unless Python finds the version's own packages."""
        code = (
            "import acktree.schemas, acktree.spark; print(acktree.schemas.__file__, acktree.spark.__file__)"
        )
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
    """Yield role, from, to, and whether by SIGKILL: there role by role, and back in the other order."""
    for number, role in enumerate(ROLES):
        yield role, old, new, number % 2 == 1
    for number, role in enumerate(reversed(ROLES)):
        yield role, new, old, number % 2 == 1


def run(old: Side, new: Side, bootstrap: str, load: SteadySender) -> None:
    """Go through all steps under load, and wait for the end of it."""
    active = dict.fromkeys(ROLES, old)

    def done() -> int:
        return committed_offsets(bootstrap, GROUP, TOPIC, PARTITIONS)[1]

    def await_frontier(target: int, what: str) -> None:
        deadline_s = time.monotonic() + STEP_TIMEOUT_S
        while done() < target:
            for role, side in active.items():
                side.children[role].check_alive()
            assert time.monotonic() < deadline_s, f"{what}: the frontier stands at {done()} of {target}"
            time.sleep(0.2)

    for role in ROLES:
        old.children[role].start()
    load.start()
    await_frontier(1, "the earlier version alone")
    for role, before, after, is_kill in steps(old, new):
        sent = len(load.lines)
        (before.children[role].kill if is_kill else before.children[role].stop)()
        after.children[role].start()
        after.children[role].wait_ready(lambda: None)
        active[role] = after
        await_frontier(max(sent, done()) + 1, f"{role} of {after.name}")
        how = "SIGKILL" if is_kill else "SIGTERM"
        console.print(
            f"{role}: {before.name} -> {after.name} by {how}; {done():,} of {len(load.lines):,} lines done"
        )
    load.stop()
    await_frontier(len(load.lines), "the end")


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
        house = earlier_version(arguments.base, home / "earlier")
        old, new = Side("earlier", house, bootstrap, home), Side("this", HOUSE, bootstrap, home)
        old.check_version(house)
        new.check_version(HOUSE)
        for side in (old, new):
            for child in side.children.values():
                running.callback(child.stop)
        old.apply()
        load = SteadySender(bootstrap, arguments.rate)
        run(old, new, bootstrap, load)
        words, failures = counted_words(home / "words.sqlite")
        wanted = count_words(load.lines)
        console.print(
            f"{len(load.lines):,} lines, {sum(words.values()):,} words, {failures} lines failed on purpose"
        )
        if words != wanted:
            sys.exit(
                f"the account is wrong: {sum(words.values())} words counted, {sum(wanted.values())} sent"
            )
        console.print("the account is exact")


if __name__ == "__main__":
    main()
