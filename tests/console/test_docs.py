"""What an operator touches is in the docs: every command, option, exit code and JSON field."""

import dataclasses
import re
from pathlib import Path

import click

from acktree.console.main import COMMANDS, load
from acktree.console.view import documents
from acktree.console.view.records import dead_letters, payloads, search, trace, tree

DOCS = Path(__file__).parents[2] / "docs"
EVERYTHING = "\n".join(path.read_text() for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"])
OPERATE = (DOCS / "operate.md").read_text()
OURS = ("dead-letter", "describe", "pending", "topics", "topology", "trace", "ui")
SHAPES = [
    shape
    for module in (documents, dead_letters, payloads, trace, tree)
    for shape in vars(module).values()
    if dataclasses.is_dataclass(shape)
    and shape not in (tree.FoundTuple, tree.TupleTrace, tree.RootFindings, search.Search, search.TraceTarget)
]


def commands(name, command):
    if isinstance(command, click.Group):
        for verb, below in command.commands.items():
            yield from commands(f"{name} {verb}", below)
    else:
        yield name, command


ALL = [pair for name in COMMANDS for pair in commands(name, load(name, COMMANDS[name]))]
OPERATORS = [pair for pair in ALL if pair[0].split()[0] in OURS]


def test_every_command_is_in_the_docs():
    assert [name for name, _ in ALL if f"acktree {name}" not in EVERYTHING] == []


def test_every_option_of_an_operators_command_is_in_the_docs():
    flags = {
        (name, flag) for name, command in OPERATORS for parameter in command.params for flag in parameter.opts
    }
    documented = set(re.findall(r"(?<![\w-])--[a-z-]+", OPERATE))
    assert {(name, flag) for name, flag in flags if flag.startswith("--") and flag not in documented} == set()


def test_every_command_that_is_not_a_process_has_json_output():
    silent = {name for name, command in ALL if not any("--format" in each.opts for each in command.params)}
    assert silent == {"acker run", "bolt run", "dev", "export-traces", "spark run", "spout run"}


def test_every_field_of_the_json_is_in_the_docs():
    documented = set(re.findall(r"`([a-z_]+)`", OPERATE))
    fields = {(shape.__name__, field.name) for shape in SHAPES for field in dataclasses.fields(shape)}
    assert len(fields) > 50
    assert {(shape, field) for shape, field in fields if field not in documented} == set()


def test_every_kind_of_stuck_is_in_the_docs():
    source = (Path(documents.__file__).parent / "stuck.py").read_text()
    kinds = set(re.findall(r'Stuck\(\s*"([a-z-]+)"', source))
    assert len(kinds) == 9
    assert kinds == set(re.findall(r"^\| `([a-z]+-[a-z]+)` \|", OPERATE, re.MULTILINE))
