"""What a stage in Python refuses, each with a sentence that says what to do."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from acktree.console.demo.app_topology import load_parts
from acktree.console.main import main
from acktree.core.topology.file import parse_topology
from acktree.producers import BadHandler, BasicBolt, UnknownComponent
from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.producers.stages.stage_worker import StageWorker, parse_stage_options
from acktree.testing import TopologyTester
from acktree.testing.virtual.errors import MissingPart

TEXT = """
name = "t"
[spouts.one]
topics = ["a"]
emits = ["words"]
[spouts.two]
topics = ["b"]
emits = ["words"]
[spouts.fed]
emits = ["words"]
[bolts.count]
reads = ["words"]
"""


class Words(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value)


class ReadsOthers(Words):
    reads = ("z",)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingOffset": "latest"}, "unknown option 'startingOffset'; known options: startingOffsets, "),
        ({"startingOffsets": "newest"}, "startingOffsets='newest': must be earliest or latest"),
        ({"allowSkip": "yes"}, "allowSkip='yes': must be true or false"),
    ],
)
def test_an_invalid_option_is_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence):
        parse_stage_options(given)


@pytest.mark.simulated
@pytest.mark.parametrize(
    ("name", "stage", "sentence"),
    [
        (None, Words, "has several spouts with topics, name one with --spout: one, two"),
        ("three", Words, "has no spout 'three'; with topics it has: one, two"),
        ("fed", Words, "spout fed of topology t reads no topics: a Spout class feeds it, not a stage"),
    ],
)
def test_a_spout_that_no_stage_can_feed_is_refused(
    kafka: str, unique: str, name: str | None, stage: type[Words], sentence: str
) -> None:
    from confluent_kafka.admin import NewTopic

    from acktree.core.kafka.clients import make_admin
    from acktree.core.topology.publish import apply_topology

    text = TEXT.replace('name = "t"', f'name = "{unique}"')
    admin = make_admin(kafka, {})  # must outlive its futures
    for topic in ("a", "b"):
        text = text.replace(f'["{topic}"]', f'["{unique}.{topic}"]')
        made = admin.create_topics([NewTopic(f"{unique}.{topic}", 1)])
        made[f"{unique}.{topic}"].result()
    apply_topology(kafka, parse_topology(text.replace('"words"', f'"{unique}.words"')), {})
    with pytest.raises(UnknownComponent, match=sentence.replace("topology t ", f"topology {unique} ")):
        StageWorker(kafka, unique, stage(), name=name)


def test_a_stage_that_reads_other_topics_than_its_spout_is_refused() -> None:
    text = TEXT.partition("[spouts.two]")[0] + "[bolts.count]\nreads = ['words']\n"
    with (
        pytest.raises(BadHandler, match="ReadsOthers reads z, but one of the topology reads a"),
        TopologyTester(parse_topology(text), spouts={"one": ReadsOthers}, bolts={"count": None}) as t,
    ):
        t.run_for(1)


def test_a_spout_with_topics_and_no_stage_names_both_ways_to_give_one() -> None:
    with pytest.raises(MissingPart, match=r"stages=\{'one': function\}, or .* in Python by spouts=\{'one'"):
        TopologyTester(parse_topology(TEXT), spouts={"fed": None}, bolts={"count": None})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "defines no stage: decorate a function with @stage"),
        (
            "from acktree.producers import stage\n"
            "@stage(name='x', reads='a', emits='b', emits_as=bytes)\ndef f(v: bytes): ...\n"
            "@stage(name='x', reads='c', emits='d', emits_as=bytes)\ndef g(v: bytes): ...\n",
            "has several parts named 'x': give each its own name",
        ),
    ],
)
def test_a_file_that_is_not_an_application_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / f"app_{abs(hash(text))}.py"
    file.write_text(text)
    with pytest.raises(BadHandler, match=sentence):
        load_parts(file)


def test_a_missing_file_is_refused() -> None:
    result = CliRunner().invoke(main, ["dev", "not_there.py"])
    assert result.exit_code != 0
    assert "not_there.py must be a Python file" in str(result.exception) + result.output
