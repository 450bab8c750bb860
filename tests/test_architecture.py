"""ARCHITECTURE.md is true: its map has every folder, and its walks name functions that are there.

A rule of the whole code that no linter knows is checked here as well.
"""

import ast
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
TEXT = (HOUSE / "ARCHITECTURE.md").read_text("utf-8")
CONCEPTS = (HOUSE / "docs" / "concepts.md").read_text("utf-8").split("## Glossary\n")[1]
ROOTS = [HOUSE / folder / "acktree" for folder in ("schemas", "producers", "acker_consumer", "spark_app")]
ROOTS += [HOUSE / folder / "acktree" for folder in ("console", "testing")]
PACKAGES = [path.parent for root in ROOTS for path in sorted(root.glob("*/__init__.py"))]
MAX_FILES = 25
"""So many files a walk may name: more than that nobody reads in one go."""
MAX_CONCEPTS = 50


def folders() -> list[str]:
    """Return the folders of all packages that hold modules, as the map names them."""
    modules = [path for root in ROOTS for path in root.rglob("*.py") if path.name != "__init__.py"]
    return sorted(
        {f"{path.parent.relative_to(root)}/" for path in modules for root in ROOTS if root in path.parents}
    )


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_map_has_one_line_for_each_folder():
    assert sorted(re.findall(r"^\| `([\w/]+/)` \| ", section("Folder map"), re.MULTILINE)) == folders()


@pytest.mark.parametrize("folder", ["simulation", "conformance"])
def test_the_map_of_the_tests_names_every_file(folder: str):
    text = (HOUSE / "tests" / "README.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (`.*?) \|", text.split(f"Under `tests/{folder}/`")[1].split("\nUnder ")[0], re.MULTILINE
    )
    modules = {path.name for path in (HOUSE / "tests" / folder).glob("*.py")}
    named = set(re.findall(r"`(\w+\.py)`", "".join(rows)))
    assert named == {name for name in modules if name != "__init__.py" and not name.startswith("test_")}


def sources(path: Path, function: str) -> list[str]:
    """Return the source of each function of a name."""
    text = path.read_text("utf-8")
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return [ast.get_source_segment(text, node) or "" for node in nodes if node.name == function]


WALKS = {"Life of a record": 12, "Life of an ack": 12}


def steps_of(walk: str) -> list[tuple[int, str]]:
    """Return the steps of a walk by their numbers."""
    found = re.findall(r"^(\d+)\. (.*(?:\n   .*)*)", section(walk), flags=re.MULTILINE)
    return [(int(number), step) for number, step in found]


@pytest.mark.parametrize("walk", WALKS)
def test_each_step_of_a_walk_names_functions_that_refer_to_it(walk: str):
    steps = steps_of(walk)
    assert [number for number, _ in steps] == list(range(1, WALKS[walk] + 1))
    for number, step in steps:
        named = re.findall(r"`([\w/]+\.py):(\w+)`", step)
        assert named, f"step {number} names no function"
        for file, function in named:
            homes = [package / file for package in PACKAGES if (package / file).exists()]
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
    paths = [path for root in ROOTS for path in root.rglob("*.py")]
    said = [
        (path.name, *found)
        for path in paths
        for found in re.findall(r"# (Life of an? \w+), step (\d+)\.", path.read_text("utf-8"))
    ]
    assert len(said) == len(named)


@pytest.mark.parametrize("walk", WALKS)
def test_the_table_of_crashes_follows_the_steps_of_both_walks(walk: str):
    table = section("What a crash costs").split(f"**{walk}**\n")[1].split("\n**")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")][2:]
    numbers = [[int(number) for number in re.findall(r"\d+", row)] for row in rows]
    assert numbers
    assert numbers == sorted(numbers)
    assert {number for row in numbers for number in row} <= set(range(1, WALKS[walk] + 1))


@pytest.mark.parametrize("walk", [*WALKS, "Life of a fail", "Life of a commit"])
def test_a_walk_names_few_files_and_only_functions_that_are_there(walk: str):
    named = set(re.findall(r"`([\w/]+\.py)(?::(\w+))?`", section(walk)))
    assert named
    assert len({file for file, _ in named}) <= MAX_FILES
    for file, function in named:
        homes = [package / file for package in PACKAGES if (package / file).exists()]
        assert homes, file
        assert not function or any(sources(home, function) for home in homes), f"{file}:{function}"


def test_the_glossary_is_short_and_each_word_names_the_file_where_it_lives():
    entries = re.findall(r"^- \*\*(.+?)\*\*: (.*(?:\n  .*)*)", CONCEPTS, re.MULTILINE)
    assert len(re.findall(r"^- ", CONCEPTS, re.MULTILINE)) == len(entries) <= MAX_CONCEPTS
    assert len({word for word, _ in entries}) == len(entries)
    for word, text in entries:
        files = re.findall(r"`([\w/]+\.py)`", text)
        assert files, f"{word} names no file"
        assert [file for file in files if not any((root / file).exists() for root in ROOTS)] == [], word


def header_calls(source: str) -> list[int]:
    """Return the lines that call ``headers()`` of something, by whatever way."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        called = getattr(call.func, "attr", getattr(call.func, "id", ""))
        by_name = any(isinstance(each, ast.Constant) and each.value == "headers" for each in call.args)
        given = any(getattr(each, "attr", "") == "headers" for each in call.args)
        if (
            (called == "headers" and isinstance(call.func, ast.Attribute))
            or (called in ("getattr", "attrgetter", "methodcaller") and by_name)
            or (called == "map" and given)
        ):
            found.append(call.lineno)
    return found


@pytest.mark.parametrize(
    "source",
    ["tup._record.headers() or []", 'getattr(record, "headers")()', "map(type(first).headers, records)"],
)
def test_a_call_of_headers_is_found(source: str):
    assert header_calls(source) == [1]


def test_headers_of_records_are_read_in_one_file_alone():
    """A name that is not UTF-8 ends the process elsewhere: confluent-kafka returns a broken list."""
    paths = [path for root in ROOTS for path in root.rglob("*.py")]
    callers = {path.name for path in paths if header_calls(path.read_text("utf-8"))}
    assert callers == {"header.py"}
