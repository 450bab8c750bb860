"""Each example is a complete project: topology, code, tests that pass, and a page that says how to run it."""

import re
import shutil
from pathlib import Path

import pytest

from acktree.core.topology.file import load_topology
from simulated.test_pytest_plugin import run_pytest
from test_docs_run import HOUSE, blocks

EXAMPLES = sorted(path for path in (HOUSE / "examples").iterdir() if path.is_dir())
PAGES = {"orders": "tutorial.md", "wordcount": "testing.md"}
"""By example: the page that prints its files."""


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_has_a_topology_code_tests_and_a_page_that_names_each_file(folder: Path):
    page = (folder / "README.md").read_text()
    topology = load_topology(folder / "topology.toml")
    for file in folder.iterdir():
        assert file.name in ("README.md", "__pycache__") or f"`{file.name}`" in page, file.name
    for command in ("topology apply topology.toml", f"acker run --topology {topology.name}"):
        assert f"acktree {command}" in page
    started = set(re.findall(r"acktree (?:spark|bolt) run (\w+):(\w+)", page))
    assert len(started) == len(topology.spouts) + len(topology.bolts)
    for module, name in started:
        assert re.search(rf"^(?:def|class) {name}\b", (folder / f"{module}.py").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(folder, id=folder.name, marks=[] if folder.name == "wordcount" else pytest.mark.slow)
        for folder in EXAMPLES
    ],
)
def test_the_tests_of_an_example_pass(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("postgres")
def test_the_tests_of_the_sinks_pass_with_postgresql(
    tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(HOUSE / "examples" / "idempotent", tmp_path / "example")
    monkeypatch.setenv("TEST_POSTGRES", postgres)
    done = run_pytest(tmp_path / "example")
    assert "6 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", PAGES)
def test_a_page_prints_the_files_of_its_example(name: str):
    printed = {block.title: block.text for block in blocks(HOUSE / "docs" / PAGES[name]) if block.title}
    assert printed
    for file, text in printed.items():
        assert (HOUSE / "examples" / name / file).read_text() == text, f"{file} on {PAGES[name]}"
