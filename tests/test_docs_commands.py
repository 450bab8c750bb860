"""The commands of the docs exist, and the shell blocks of the docs run."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from confluent_kafka.admin import NewTopic

from acktree.console.main import main
from acktree.core.topology.file import load_topology
from acktree.core.topology.publish import apply_topology
from security.secure_broker import SecureBroker
from test_docs_run import HOUSE, PAGES, WAIT_S, blocks

FENCED = re.compile(r"^```(\w*).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "console")
ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "2>"}
LOOSE = re.compile(r"[\[\]…]|\$\w+|, or$")


def shell_lines(page: Path) -> Iterator[str]:
    """Yield the lines of a page that a reader would type: those of shell blocks, and spans of code."""
    text = page.read_text()
    for language, block in FENCED.findall(text):
        if language in SHELL:
            is_session = language != "sh"
            lines = re.sub(r"[|\\]\n\s+", "| ", block).splitlines()
            yield from (line.removeprefix("$ ") for line in lines if line.startswith("$ ") or not is_session)
    prose = FENCED.sub("", text)
    yield from (span.replace("\n", " ") for span in re.findall(r"`((?:acktree|make) [^`]+)`", prose))


def commands(line: str, program: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of a program in a line."""
    words = shlex.split(LOOSE.sub("", line), comments=True)
    if words[:2] == ["docker", "build"]:
        return
    starts = [number for number, word in enumerate(words) if word == program]
    for number in starts:
        arguments = words[number + 1 :]
        end = next((at for at, word in enumerate(arguments) if word in ENDS), len(arguments))
        yield arguments[:end]


def commands_of(program: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a program in the docs: page and arguments."""
    return [
        (page.name, arguments)
        for page in PAGES
        for line in shell_lines(page)
        for arguments in commands(line, program)
    ]


ACKTREE, MAKE = commands_of("acktree"), commands_of("make")


def test_the_docs_name_commands():
    assert len(ACKTREE) > 40
    assert len(MAKE) > 3


def mistake(arguments: list[str]) -> str | None:
    """Return what is wrong with a call of acktree, None if it exists with its options."""
    command: click.Command = main
    left = list(arguments)
    while isinstance(command, click.Group) and left:
        found = command.get_command(click.Context(command), left.pop(0))
        if found is None:
            return "there is no such command"
        command = found
    known = {flag for parameter in command.params for flag in parameter.opts} | {"--help", "--version"}
    if unknown := {word for word in left if word.startswith("-")} - known:
        return f"it has no {sorted(unknown)}"
    is_whole = not isinstance(command, click.Group) and not any(word.isupper() for word in left)
    if is_whole and left and "-b" in left:
        try:
            command.make_context("acktree", left)  # types and required arguments, too
        except click.UsageError as error:
            return error.format_message()
    return None


def test_every_command_of_the_docs_exists_with_its_options():
    found = {(page, " ".join(arguments)): mistake(arguments) for page, arguments in ACKTREE}
    assert {command: wrong for command, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nothing", "no such command"),
        ("topology nothing", "no such command"),
        ("broker --prot 1", "--prot"),
        ("topology show -b here --format yaml", "yaml"),
    ],
)
def test_a_mistake_in_a_command_is_found(line: str, says: str):
    assert says in str(mistake(line.split()))


def test_every_target_of_make_in_the_docs_exists():
    targets = set(re.findall(r"^([a-z-]+):", (HOUSE / "Makefile").read_text(), re.MULTILINE))
    wanted = {(page, word) for page, arguments in MAKE for word in arguments if "=" not in word}
    assert {(page, word) for page, word in wanted if word not in targets} == set()


def test_the_packages_that_the_docs_install_exist():
    extras = set(tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    installed = {
        (page.name, name)
        for page in PAGES
        for names in re.findall(r"acktree\[([a-z,-]+)\]", page.read_text())
        for name in names.split(",")
    }
    assert {name for _, name in installed} >= {"spark", "broker"}
    assert {(page, name) for page, name in installed if name not in extras} == set()


class Shell:
    """Runs shell blocks as they stand in the docs, with programs that stand in for what is not ours."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "bin").mkdir()

    def stand_in(self, name: str) -> Path:
        """Make a program that writes down what it is called with; return that file."""
        calls = self._folder / f"{name}.calls"
        calls.touch()
        program = self._folder / "bin" / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {calls}\n')
        program.chmod(0o755)
        return calls

    def run(self, block: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = [str(self._folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        return subprocess.run(
            ["bash", "-uo", "pipefail", "-c", block],
            cwd=self._folder,
            env={**os.environ, "PATH": os.pathsep.join(path), **environment},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def shell_blocks(page: str) -> list[str]:
    return [block.text for block in blocks(HOUSE / "docs" / page) if block.language == "sh"]


def test_the_monitoring_script_of_the_docs_alerts_exactly_if_something_is_wrong(
    shell: Shell, bootstrap: str, unique: str, tmp_path: Path
):
    block, _ = shell_blocks("operate.md")
    calls = shell.stand_in("page-the-operator")
    (tmp_path / "t.toml").write_text(f'name = "{unique}"\n[spouts.s]\nemits = ["{unique}.out"]\n')
    apply_topology(bootstrap, load_topology(tmp_path / "t.toml"), {})
    block = block.replace("--topology wordcount", f"--topology {unique}")
    done = shell.run(block, ACKTREE_BOOTSTRAP_SERVER=bootstrap)
    assert (done.returncode, done.stdout, calls.read_text()) == (0, "", ""), done.stderr
    done = shell.run(block.replace(unique, "nothing"), ACKTREE_BOOTSTRAP_SERVER=bootstrap)
    assert (done.returncode, calls.read_text()) == (0, "\n"), done.stderr


def test_the_shell_completion_of_the_docs_works(shell: Shell):
    _, block = shell_blocks("operate.md")
    done = shell.run(block + "COMP_WORDS=(acktree dead-letter s) COMP_CWORD=2\ncomplete -p acktree")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "complete"


def test_the_acl_plans_of_the_docs_run_with_kafkas_tool(shell: Shell, secure: SecureBroker, tmp_path: Path):
    (block,) = shell_blocks("security.md")
    example = HOUSE / "examples" / "wordcount" / "topology.toml"
    (tmp_path / "topology.toml").write_text(example.read_text())
    secure.admin.create_topics([NewTopic("lines", 1)])["lines"].result()
    apply_topology(secure.plain, load_topology(example), {})
    calls = shell.stand_in("kafka-acls.sh")
    done = shell.run(block.replace("localhost:9092", secure.plain))
    assert done.returncode == 0, done.stderr
    lines = calls.read_text().splitlines()
    start = f"--bootstrap-server {secure.plain} --add --allow-principal User:acker --operation"
    assert len(lines) > 5
    assert all(line.startswith(start) for line in lines)
    assert f"{start} Write --topic wordcount.spout- --resource-pattern-type prefixed" in lines
    assert secure.rights_of("ops")
