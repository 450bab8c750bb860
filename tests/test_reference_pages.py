"""The reference pages are whole: each key of a topology file, each error, each page in the contents."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

import public_names
from acktree.core.topology.file import BoltTable, SparkTable, SpoutSparkTable, SpoutTable, Topology

HOUSE = Path(__file__).parents[1]
DOCS = HOUSE / "docs"
DIAGRAMS = runpy.run_path(str(DOCS / "diagrams.py"))


@pytest.mark.parametrize("name", ["errors", "commands", "api"])
def test_a_generated_page_is_what_its_program_makes(name: str):
    made = runpy.run_path(str(DOCS / f"{name}.py"))
    assert (DOCS / f"{name}.md").read_text() == made["page"](), f"write it again: python docs/{name}.py"


def test_the_diagrams_are_what_their_program_draws_and_have_a_text_alternative():
    pages = "".join(
        path.read_text() for path in (*DOCS.glob("*.md"), HOUSE / "README.md", HOUSE / "ARCHITECTURE.md")
    )
    drawn = {each.name: each.svg() for draw in DIAGRAMS["DIAGRAMS"] for each in [draw()]}
    assert {path.stem for path in (DOCS / "images").glob("*.svg")} == set(drawn)
    for name, svg in drawn.items():
        assert (DOCS / "images" / f"{name}.svg").read_text() == svg, "draw it again: python docs/diagrams.py"
        root = ElementTree.fromstring(svg)
        texts = {child.tag.rpartition("}")[2]: child.text or "" for child in root}
        assert texts["title"]
        assert len(texts["desc"]) > 100
        assert f"images/{name}.svg)" in pages


def test_every_logger_and_action_is_in_the_docs():
    page = (DOCS / "logging.md").read_text()
    loggers, actions = public_names.loggers(), public_names.actions()
    assert len(loggers) >= 8
    assert len(actions) >= 40
    assert {name for name in loggers | actions if f"`{name}`" not in page} == set()


def test_every_key_of_a_topology_file_is_in_the_docs_with_its_default():
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (\S*)", (DOCS / "topology.md").read_text(), re.MULTILINE))
    for table in (Topology, SpoutTable, BoltTable, SpoutSparkTable, SparkTable):
        for name, field in table.model_fields.items():
            key = field.alias or name
            if key in ("spouts", "bolts", "spark"):
                continue
            assert key in rows
            if isinstance(field.default, str):
                assert rows[key] == field.default
            elif isinstance(field.default, bool):
                assert rows[key] == str(field.default).lower()
            elif isinstance(field.default, int | float) and key != "orphan_timeout_s":  # described in words
                assert float(rows[key]) == field.default, key


def test_every_page_is_in_the_table_of_contents():
    listed: set[str] = set()
    for entry in yaml.safe_load((HOUSE / "mkdocs.yml").read_text())["nav"]:
        pages = next(iter(entry.values())) if isinstance(entry, dict) else entry
        listed |= {pages} if isinstance(pages, str) else set(pages)
    assert listed == {path.name for path in DOCS.glob("*.md")}
