"""The pytest plugin and its page: the page's test runs as a user would run it, and nobody needs the extra."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

from deadlines import stretched

HOUSE = Path(__file__).parents[2]
PLUGIN = "acktree.testing.pytest_plugin"


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    installed = {point.value for point in entry_points(group="pytest11")}
    plugin = [] if PLUGIN in installed else ["-p", PLUGIN]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=stretched(250),
        check=False,
    )


def test_the_plugin_is_an_entry_point_that_exists():
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"acktree": PLUGIN}
    assert hasattr(importlib.import_module(PLUGIN), "topology_tester")


def test_the_test_of_the_page_passes_beside_the_word_count_example(tmp_path: Path):
    shutil.copytree(HOUSE / "examples" / "wordcount", tmp_path, dirs_exist_ok=True)
    page = (HOUSE / "docs" / "testing.md").read_text()
    (text,) = re.findall(r'^```python title="test_wordcount.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_wordcount.py").write_text(text)
    done = run_pytest(tmp_path, "test_wordcount.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_test_that_fails_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "topology.toml").write_text(
        'name = "t"\n[spouts.lines]\ntopics = ["lines"]\nemits = ["words"]\n[bolts.keep]\nreads = ["words"]\n'
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "from acktree.producers import BasicBolt\n"
        "class Keep(BasicBolt):\n"
        "    def execute(self, tup, emit): pass\n"
        "kept = []\n"
        "def test_that_fails(topology_tester):\n"
        "    stages, bolts = {'lines': lambda row: [row.value]}, {'keep': Keep}\n"
        "    kept.append(topology_tester('topology.toml', stages=stages, bolts=bolts))\n"
        "    kept[0].send('lines', 'x')\n"
        "    assert False, 'on purpose'\n"
        "def test_nothing_runs():\n"
        "    assert not any(process.tasks for process in kept[0].kernel.processes)\n"
        "    with pytest.raises(Exception, match='is not running'):\n"
        "        kept[0].run_for(1)\n"
    )
    done = run_pytest(tmp_path, "test_it.py")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr


def test_without_the_extra_pytest_works_and_the_fixture_says_what_to_install(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("import sys\nsys.modules['greenlet'] = None\n")
    (tmp_path / "test_it.py").write_text(
        "def test_of_something_else(): pass\ndef test_of_a_topology(topology_tester): topology_tester('t')\n"
    )
    done = run_pytest(tmp_path, "test_it.py")
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "pip install '.[testing]'" in done.stdout
