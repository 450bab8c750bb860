"""ARCHITECTURE.md is true: its map has every file, and its walks name functions that are there."""

import ast
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
TEXT = (HOUSE / "ARCHITECTURE.md").read_text("utf-8")
PACKAGES = ["schemas", "producers", "acker_consumer", "spark_app", "console"]
WHOLE_FOLDERS = {"commands", "devbroker", "view", "page", "demo", "benches"}
"""Folders of one kind of file each, which the map names as a whole."""


def sections() -> dict[str, str]:
    """Return by package the part of the file map about it."""
    starts = re.split(r"^Under `([^`]+)/`", TEXT, flags=re.MULTILINE)
    return {folder: text.split("\n## ")[0] for folder, text in zip(starts[1::2], starts[2::2], strict=True)}


def modules(folder: str) -> set[str]:
    root = HOUSE / folder
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if path.name != "__init__.py"}
    return {name for name in found if name.split("/")[0] not in WHOLE_FOLDERS}


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_map_covers_every_package():
    assert sorted(folder.split("/")[0] for folder in sections()) == sorted(PACKAGES)


@pytest.mark.parametrize("folder", sorted(sections()))
def test_the_map_names_every_file_and_no_other(folder: str):
    named = set(
        re.findall(r"`([\w/]+\.py)`", "".join(re.findall(r"^\| (`.*?) \|", sections()[folder], re.MULTILINE)))
    )
    assert named == modules(folder)


@pytest.mark.parametrize("walk", ["Life of a record", "Life of an ack"])
def test_each_step_of_a_walk_names_functions_that_are_there(walk: str):
    text = TEXT.split(f"## {walk}\n")[1].split("\n## ")[0]
    steps = re.findall(r"^(\d+)\. (.*(?:\n   .*)*)", text, flags=re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, 13))
    for number, step in steps:
        named = re.findall(r"`([\w/]+\.py):(\w+)`", step)
        assert named, f"step {number} names no function"
        for file, function in named:
            homes = [HOUSE / folder / file for folder in sections() if (HOUSE / folder / file).exists()]
            assert any(function in functions(home) for home in homes), f"step {number}: {file}:{function}"
