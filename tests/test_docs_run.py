"""The docs run: every Python block of every page, and Getting started as a newcomer would do it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions

import acktree.producers
from acktree.console.devbroker import ports
from acktree.core.topology.file import Topology, parse_topology
from acktree.core.topology.publish import apply_topology
from deadlines import ANSWER_S, stretched

HOUSE = Path(__file__).parents[1]
PAGES = [HOUSE / "README.md", *sorted((HOUSE / "docs").glob("*.md"))]
PAGES += [HOUSE / "tests" / "README.md", *sorted((HOUSE / "examples").glob("*/README.md"))]
PART = "<!-- a part of a program: compiled by the tests, not run -->\n"
BLOCK = re.compile(rf"(^{PART})?^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT_S = stretched(300)
ENDLESS = ("acktree spark run ", "acktree spout run ", "acktree dev ")
"""Commands that run until a stop, without being put into the background."""


class Block(NamedTuple):
    """One fenced block; ``title`` is the file it is to be saved as."""

    part: str
    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


def with_blocks(language: str) -> list[Any]:
    chosen = [page for page in PAGES if any(each.language == language for each in blocks(page))]
    return [pytest.param(page, id=page.name) for page in chosen]


@pytest.mark.parametrize("page", with_blocks("python"))
def test_the_python_blocks_of_a_page_run_from_top_to_bottom(page: Path):
    """All blocks run in one namespace, like a reader's session; those with a title are run as files below."""
    names = {name: getattr(acktree.producers, name) for name in acktree.producers.__all__}
    names |= {"f": functions, "__name__": "docs"}
    for block in blocks(page):
        if block.language == "python" and not block.title:
            compiled = compile(block.text, page.name, "exec")
            if not block.part:
                exec(compiled, names)  # noqa: S102


@pytest.mark.parametrize("page", with_blocks("toml"))
def test_the_topologies_of_a_page_are_valid(page: Path):
    for block in blocks(page):
        if block.language == "toml":
            assert isinstance(parse_topology(block.text), Topology)


class Console:
    """Does what a page's console blocks say, in a folder with the page's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = {**os.environ, "PATH": path}
        self._running: list[subprocess.Popen[bytes]] = []

    def do(self, text: str) -> None:
        """Run each line that begins with "$ "; lines below it must be in its output."""
        for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *expected = step.splitlines()
            if command.endswith("&"):
                self._start(command.rstrip("& "))
            else:
                self._run(command, expected)

    def do_shell(self, text: str) -> None:
        """Run the lines of a shell block one by one; what is installed is there already, and so are files."""
        for line in text.splitlines():
            command = line.partition(" #")[0].strip()
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self._environment[name] = value
            elif command.endswith("&") or command.startswith(ENDLESS):
                self._start(command.rstrip("& "))
            elif not command.startswith(("pip install ", "git clone ", "cd ")):
                self._run(command, [])

    def _run(self, command: str, expected: list[str]) -> None:
        done = subprocess.run(
            shlex.split(command),
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        printed = [line.rstrip() for line in done.stdout.splitlines()]
        for line in expected:
            assert line.rstrip() in printed, f"{command} printed {printed}"

    def _start(self, command: str) -> None:
        log = self._folder / f"{len(self._running)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                shlex.split(command), cwd=self._folder, env=self._environment, stderr=out, stdout=out
            )
        self._running.append(process)
        self.wait_for("ready")

    def wait_for(self, pattern: str) -> tuple[str, ...]:
        """Wait until the last process has printed this; return the groups of the pattern."""
        process, log = self._running[-1], self._folder / f"{len(self._running) - 1}.log"
        deadline_s = time.monotonic() + WAIT_S
        while (found := re.search(pattern, log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, f"no {pattern} in {log.read_text()}"
            time.sleep(0.1)
        return found.groups()

    def stop(self) -> None:
        """End what runs, the last one first: the broker was the first."""
        for process in reversed(self._running):
            process.terminate()
            process.wait(ANSWER_S)


def write(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """Return the first values of a topic of one partition; wait for so many."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader of the docs"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"{topic} has {found}"
        if (message := consumer.poll(1.0)) is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    opened = Console(tmp_path)
    yield opened
    opened.stop()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_getting_started_works_as_written(console: Console, tmp_path: Path):
    (port,) = ports.free_ports(1)
    for block in blocks(HOUSE / "docs" / "getting-started.md"):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        elif block.language == "console":
            console.do(block.text)
        elif block.language == "sh":
            console.do_shell(block.text.replace("9092", str(port)))
    words = 2 * b"to be or not to be that is the question".split()
    assert sorted(word or b"" for word in read(f"127.0.0.1:{port}", "words", len(words))) == sorted(words)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readme_works_as_written(console: Console, tmp_path: Path):
    page = blocks(HOUSE / "README.md")
    for block in page:
        if block.title:
            (tmp_path / block.title).write_text(block.text)
    (dev,) = (each.text for each in page if each.language == "sh" and "acktree" in each.text)
    console.do_shell(dev)
    (started,) = console.wait_for(r"ready: topology app at (\S+)")
    write(started, "lines", b"to be")
    console.wait_for("count: be 1")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_word_count_works_as_its_page_says(console: Console, tmp_path: Path):
    (port,) = ports.free_ports(1)
    example = HOUSE / "examples" / "wordcount"
    shutil.copytree(example, tmp_path, dirs_exist_ok=True)
    console.do_shell(f"acktree broker --port {port} --data-dir kafka &")
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    admin.create_topics([NewTopic("lines", 1)])["lines"].result()
    (block,) = [each.text for each in blocks(example / "README.md") if "acktree spark run" in each.text]
    console.do_shell(block.replace("9092", str(port)))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_tutorial_works_as_written(console: Console, tmp_path: Path):
    (port,) = ports.free_ports(1)
    for block in blocks(HOUSE / "docs" / "tutorial.md"):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        elif block.language == "console":
            console.do(block.text)
        elif block.language == "sh":
            console.do_shell(block.text.replace("9092", str(port)))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "value"),
    [("shorten.py", b"a line tha"), ("upper.py", b"A LINE THAT IS LONGER THAN TEN CHARACTERS")],
)
def test_a_users_own_application_runs_as_printed(
    bootstrap: str, unique: str, tmp_path: Path, title: str, value: bytes
):
    (program,) = [each.text for each in blocks(HOUSE / "docs" / "spark.md") if each.title == title]
    (tmp_path / title).write_text(program.replace('"short"', f'"{unique}"'))
    topology = f'name = "{unique}"\n[spouts.lines]\ntopics = ["{unique}.lines"]\nemits = ["{unique}.out"]\n'
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(f"{unique}.lines", 1)])[f"{unique}.lines"].result()
    apply_topology(bootstrap, parse_topology(topology), {})
    write(bootstrap, f"{unique}.lines", b"a line that is longer than ten characters")
    console = Console(tmp_path)
    try:
        console.do_shell(f"acktree acker run -b {bootstrap} --topology {unique} &")
        console.do_shell(f"python {title} {bootstrap}")
    finally:
        console.stop()
    assert read(bootstrap, f"{unique}.out", 1) == [value]
