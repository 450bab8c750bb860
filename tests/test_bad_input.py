"""What an operator gets wrong ends in one clear sentence and exit code 2, before anything is started."""

import os
import socket
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import NewTopic

import prerequisites
from acktree.console.commands.running import spark
from acktree.console.demo.run import wordcount_folder
from acktree.console.devbroker.java import MissingJava, find_java
from acktree.console.main import main
from acktree.core import world
from acktree.core.kafka import clients
from acktree.core.kafka.clients import make_admin
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.spark import app
from acktree.spark.shared.options import SourceOptions
from deadlines import ANSWER_S, stretched
from producers.cluster import until
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

NOWHERE = "127.0.0.1:1"
WAIT_S = stretched(30)
SPARK = ["spark", "run", "split_lines:words"]
BOLT = ["bolt", "run", "count_words:CountWords"]
ACKER = ["acker", "run"]
ROLES = {"spark": [*SPARK, "--spout", "s"], "bolt": BOLT, "acker": ACKER}


@cache
def java_of(home: str | None) -> Path:
    """Return the Java of a JAVA_HOME, which is the present one."""
    try:
        return find_java()
    except MissingJava as reason:
        prerequisites.give_up(str(reason))


@pytest.fixture(autouse=True)
def java_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask Java for its version once, not in each case: virtual time does not pass for a real process."""
    present = os.environ.get("JAVA_HOME")
    found = java_of(present)

    def find() -> Path:
        return found if os.environ.get("JAVA_HOME") == present else find_java()

    monkeypatch.setattr(spark, "find_java", find)


@pytest.fixture
def topology(kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch, simulation: Simulation | None) -> str:
    monkeypatch.chdir(wordcount_folder())
    run_in(simulation, lambda: publish(kafka, unique))
    return unique


def publish(bootstrap: str, name: str) -> None:
    admin = make_admin(bootstrap, {})
    world.wait_for(admin.create_topics([NewTopic(f"{name}.in", 1)])[f"{name}.in"], WAIT_S)
    text = f'name = "{name}"\n[spouts.s]\ntopics = ["{name}.in"]\nemits = ["{name}.out"]\n'
    text += f'[bolts.count]\nreads = ["{name}.out"]\n'
    apply_topology(bootstrap, parse_topology(text), {})


def error_of(*arguments: str) -> str:
    """Run a command in this process; return its one sentence."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 2, result.output
    sentences = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert len(sentences) == 1, result.output
    return sentences[0]


@pytest.mark.parametrize("role", ROLES)
def test_an_unknown_topology_says_how_to_publish_it(
    kafka: str, topology: str, role: str, tmp_path: Path
) -> None:
    name = f"{topology}-unknown"
    sentence = error_of(*ROLES[role], "-b", kafka, "--topology", name)
    assert f"topology '{name}' is not published" in sentence
    assert "acktree topology apply FILE" in sentence
    file = tmp_path / "topology.toml"
    file.write_text(f'name = "{name}"\n[spouts.s]\nemits = ["{name}.out"]\n')
    published = CliRunner().invoke(main, ["topology", "apply", str(file), "-b", kafka])
    assert published.exit_code == 0, published.output
    assert read_history(kafka, name, {}).latest.version == 1


@pytest.mark.parametrize("role", ROLES)
def test_a_broker_that_does_not_answer_is_named(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(wordcount_folder())
    monkeypatch.setattr(clients, "BROKER_TIMEOUT_S", 0.5)  # nobody is there, however long it waits
    assert f"no Kafka broker answers at {NOWHERE}" in error_of(
        *ROLES[role], "-b", NOWHERE, "--topology", "any"
    )


@pytest.mark.parametrize("role", ROLES)
def test_a_setting_that_breaks_a_guarantee_is_refused(kafka: str, topology: str, role: str) -> None:
    setting = "isolation.level=read_uncommitted"
    sentence = error_of(*ROLES[role], "-b", kafka, "--topology", topology, "-X", setting)
    assert f"{setting} is refused: records of aborted transactions" in sentence


@pytest.mark.real
def test_an_unknown_component_is_answered_with_the_existing_ones(kafka: str, topology: str) -> None:
    common = ("-b", kafka, "--topology", topology)
    assert "has no spout 'lines'; it must be one of: s" in error_of(*SPARK, "--spout", "lines", *common)
    assert "has no bolt 'lines'; it must be one of: count" in error_of(*SPARK, "--bolt", "lines", *common)
    assert "has no bolt 'lines'" in error_of(*BOLT, "--bolt", "lines", *common)


def test_a_deleted_source_topic_is_named(kafka: str, topology: str) -> None:
    admin = make_admin(kafka, {})
    world.wait_for(admin.delete_topics([f"{topology}.in"])[f"{topology}.in"], WAIT_S)
    until(lambda: f"{topology}.in" not in admin.list_topics(timeout=ANSWER_S).topics)
    sentence = error_of(*SPARK, "--spout", "s", "-b", kafka, "--topology", topology)
    assert f"topic '{topology}.in', which s reads, does not exist" in sentence


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("split_lines", "is not MODULE:FUNCTION"),
        ("split_lines:lines", "module 'split_lines' has no 'lines'"),
        ("no_such_module:f", "no module 'no_such_module'"),
    ],
)
def test_a_missing_function_is_named(kafka: str, topology: str, place: str, says: str) -> None:
    common = ("--spout", "s", "-b", kafka, "--topology", topology)
    assert says in error_of("spark", "run", place, *common)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("maxOffsetsPerTrigger=many", "maxOffsetsPerTrigger='many': must be a whole number of at least 1"),
        ("maxOffsets=5", "unknown option 'maxoffsets'; known options: topology, spout"),
    ],
)
def test_a_wrong_option_of_the_source_is_named(kafka: str, topology: str, option: str, says: str) -> None:
    common = ("--spout", "s", "-b", kafka, "--topology", topology)
    assert says in error_of(*SPARK, "--option", option, *common)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("kafka.linger.ms=5", "kafka.linger.ms is given by -b and -X, without the prefix kafka."),
        ("spout=s", "spout is given by --spout"),
        ("includeHeaders", "'includeHeaders' is not KEY=VALUE"),
    ],
)
def test_a_setting_with_its_own_flag_is_not_an_option_of_the_source(option: str, says: str) -> None:
    command = [*SPARK, "--spout", "s", "-b", "127.0.0.1:1", "--topology", "t", "--option", option]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, says in result.output) == (2, True), result.output


def test_options_reach_the_source(kafka: str, topology: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(app, "run", lambda _place, options, *_others, **_more: given.append(options))
    common = ["--spout", "s", "-b", kafka, "--topology", topology]
    options = ["--option", "includeHeaders=true", "--option", "maxOffsetsPerTrigger=7"]
    result = CliRunner().invoke(main, [*SPARK, *common, *options])
    assert result.exit_code == 0, result.output
    parsed = SourceOptions.parse(given[0])
    assert (parsed.include_headers, parsed.max_offsets, parsed.spout) == (True, 7, "s")


@pytest.mark.parametrize("trigger", ["soon", "2"])
def test_an_invalid_trigger_is_answered_with_the_valid_ones(kafka: str, topology: str, trigger: str) -> None:
    common = ("--spout", "s", "-b", kafka, "--topology", topology)
    assert "available-now or an interval" in error_of(*SPARK, "--trigger", trigger, *common)


def test_spark_without_java_says_what_to_install(
    kafka: str, topology: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    sentence = error_of(*SPARK, "--spout", "s", "-b", kafka, "--topology", topology)
    assert "need Java 17 or newer" in sentence


def test_exactly_one_of_spout_and_bolt_must_be_given(kafka: str, topology: str) -> None:
    for role in ([], ["--spout", "s", "--bolt", "count"]):
        result = CliRunner().invoke(main, [*SPARK, *role, "-b", kafka, "--topology", topology])
        assert result.exit_code == 2
        assert "either --spout NAME or --bolt NAME" in result.output


def test_the_demo_requires_a_positive_number_of_lines() -> None:
    result = CliRunner().invoke(main, ["demo", "--lines", "few"])
    assert result.exit_code == 2
    assert "'few' is neither a whole number from 1 nor 'all'" in result.output


@pytest.mark.parametrize(
    ("host", "reason"), [("127.0.0.1", "Address already in use"), ("192.0.2.1", "Cannot assign")]
)
def test_a_page_that_cannot_be_served_reports_an_error_and_never_readiness(
    host: str, reason: str, monkeypatch
):
    monkeypatch.setenv("ACKTREE_UI_TOKEN", "a-token-of-more-than-16-characters")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        sentence = error_of("ui", "--topology", "any", "-b", NOWHERE, "--host", host, "--port", port)
    assert f"cannot serve on {host} port {port}" in sentence
    assert reason in sentence
