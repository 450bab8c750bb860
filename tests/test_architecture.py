"""ARCHITECTURE.md is true: its map has every file, and its walks name functions that are there."""

import ast
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
TEXT = (HOUSE / "ARCHITECTURE.md").read_text("utf-8")
MAPS = (TEXT, (HOUSE / "tests" / "README.md").read_text("utf-8"))
PACKAGES = [
    "schemas",
    "producers",
    "acker_consumer",
    "spark_app",
    "console",
    "testing",
    "tests/conformance",
    "tests/simulation",
]
WHOLE_FOLDERS = {"commands", "devbroker", "view", "page", "demo"}
"""Folders of one kind of file each, which the map names as a whole."""


def sections() -> dict[str, str]:
    """Return by package the part of a file map about it."""
    starts = [re.split(r"^Under `([^`]+)/`", text, flags=re.MULTILINE) for text in MAPS]
    return {
        folder: text.split("\n## ")[0]
        for found in starts
        for folder, text in zip(found[1::2], found[2::2], strict=True)
    }


def modules(folder: str) -> set[str]:
    root = HOUSE / folder
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if path.name != "__init__.py"}
    return {
        name for name in found if name.split("/")[0] not in WHOLE_FOLDERS and not name.startswith("test_")
    }


def sources(path: Path, function: str) -> list[str]:
    """Return the source of each function of a name."""
    text = path.read_text("utf-8")
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return [ast.get_source_segment(text, node) or "" for node in nodes if node.name == function]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_map_covers_every_package():
    assert sorted(folder.split("/acktree")[0] for folder in sections()) == sorted(PACKAGES)


@pytest.mark.parametrize("folder", sorted(sections()))
def test_the_map_names_every_file_and_no_other(folder: str):
    named = set(
        re.findall(r"`([\w/]+\.py)`", "".join(re.findall(r"^\| (`.*?) \|", sections()[folder], re.MULTILINE)))
    )
    assert named == modules(folder)


WALKS = {"Life of a record": 12, "Life of an ack": 12}


def steps_of(walk: str) -> list[tuple[int, str]]:
    """Return the steps of a walk by their numbers."""
    text = TEXT.split(f"## {walk}\n")[1].split("\n## ")[0]
    found = re.findall(r"^(\d+)\. (.*(?:\n   .*)*)", text, flags=re.MULTILINE)
    return [(int(number), step) for number, step in found]


@pytest.mark.parametrize("walk", WALKS)
def test_each_step_of_a_walk_names_functions_that_refer_to_it(walk: str):
    steps = steps_of(walk)
    assert [number for number, _ in steps] == list(range(1, WALKS[walk] + 1))
    for number, step in steps:
        named = re.findall(r"`([\w/]+\.py):(\w+)`", step)
        assert named, f"step {number} names no function"
        for file, function in named:
            homes = [HOUSE / folder / file for folder in sections() if (HOUSE / folder / file).exists()]
            said = f"# {walk}, step {number}."
            assert any(said in text for home in homes for text in sources(home, function)), (
                f"step {number}: {file}:{function} is not there, or does not say {said!r}"
            )


def test_no_other_function_refers_to_a_step():
    named = {
        (walk, number, file, function)
        for walk in WALKS
        for number, step in steps_of(walk)
        for file, function in re.findall(r"`([\w/]+\.py):(\w+)`", step)
    }
    paths = [path for folder in sections() for path in (HOUSE / folder).rglob("*.py")]
    said = [
        (path.name, *found)
        for path in paths
        for found in re.findall(r"# (Life of an? \w+), step (\d+)\.", path.read_text("utf-8"))
    ]
    assert len(said) == len(named)


@pytest.mark.parametrize("walk", WALKS)
def test_the_table_of_crashes_follows_the_steps_of_both_walks(walk: str):
    text = TEXT.split("## What a crash costs\n")[1].split("\n## ")[0]
    table = text.split(f"**{walk}**\n")[1].split("\n**")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")][2:]
    numbers = [[int(number) for number in re.findall(r"\d+", row)] for row in rows]
    assert numbers
    assert numbers == sorted(numbers)
    assert {number for row in numbers for number in row} <= set(range(1, WALKS[walk] + 1))
