"""What an operator touches is in the docs: every command, option, exit code and JSON field."""

import dataclasses
import re
from pathlib import Path

import click
import pytest

from acktree.console.main import COMMANDS, load
from acktree.console.view import documents, letters, search, trace, tree

DOCS = Path(__file__).parents[2] / "docs"
EVERYTHING = "\n".join(path.read_text() for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"])
OPERATE = (DOCS / "operate.md").read_text()
OURS = ("dead-letter", "describe", "pending", "topics", "topology", "trace", "ui")
SHAPES = [
    shape
    for module in (documents, letters, trace, tree)
    for shape in vars(module).values()
    if dataclasses.is_dataclass(shape)
    and shape not in (tree.Found, tree.Gathered, search.Search, search.Target)
]


def commands(name, command):
    if isinstance(command, click.Group):
        for verb, below in command.commands.items():
            yield from commands(f"{name} {verb}", below)
    else:
        yield name, command


ALL = [pair for name in COMMANDS for pair in commands(name, load(name, COMMANDS[name]))]
OPERATORS = [pair for pair in ALL if pair[0].split()[0] in OURS]


@pytest.mark.parametrize("name", [name for name, _ in ALL])
def test_every_command_is_in_the_docs(name):
    assert f"acktree {'bench' if name.startswith('bench ') else name}" in EVERYTHING


@pytest.mark.parametrize(("name", "command"), OPERATORS, ids=[name for name, _ in OPERATORS])
def test_every_option_of_an_operators_command_is_in_the_docs(name, command):
    for parameter in command.params:
        for flag in parameter.opts:
            if flag.startswith("--"):
                assert flag in OPERATE, flag


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_every_command_but_a_process_of_the_topology_speaks_json(name, command):
    is_process = name in ("acker run", "bolt run", "spark run", "spout run")
    assert is_process or any("--format" in parameter.opts for parameter in command.params)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_field_of_the_json_is_in_the_docs(shape):
    told = set(re.findall(r"`([a-z_]+)`", OPERATE))
    assert {field.name for field in dataclasses.fields(shape)} <= told


def test_every_kind_of_stuck_is_in_the_docs():
    source = (Path(documents.__file__).parent / "stuck.py").read_text()
    kinds = set(re.findall(r'Stuck\(\s*"([a-z-]+)"', source))
    assert len(kinds) == 4
    assert kinds == set(re.findall(r"^\| `([a-z]+-[a-z]+)` \|", OPERATE, re.MULTILINE))
