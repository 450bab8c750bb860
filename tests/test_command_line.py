"""The command line as other programs see it: stdout, exit codes, signals, one sentence an error.

Commands run in this process; what only a process shows (signals, exit codes, imports) has one of its own.
"""

import doctest
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient, NewTopic

import prerequisites
from acktree.console.commands.options import bootstrap_option, parse_settings
from acktree.console.devbroker import ports
from acktree.console.main import COMMANDS, Command, CommandUnavailable, load, main
from acktree.core.kafka.clients import make_admin, make_producer
from deadlines import stretched
from simulated_kafka import Simulation, run_in

ACKTREE = Path(sys.executable).with_name("acktree")
WAIT_S = stretched(120)


@pytest.fixture(autouse=True)
def kept_signal_handlers() -> Iterator[None]:
    """Put back the signal handlers that a command sets for its process, which is this one."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def acktree(*arguments: object, **changes: str | None) -> Result:
    """Run a command in this process, with some environment variables set, or taken out where None."""
    environment = {"ACKTREE_BOOTSTRAP_SERVER": None, **changes}
    done = CliRunner(env=environment).invoke(main, [*map(str, arguments)], prog_name="acktree")
    if not isinstance(done.exception, SystemExit | None):
        raise done.exception  # the runner would make exit code 1 of it
    return done


def await_file(path: Path) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path} did not appear"
        time.sleep(0.01)


def assert_one_sentence(done: Result, *words: str) -> None:
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


# --- broker


@pytest.mark.parametrize(
    ("how", "style"),
    [
        pytest.param(signal.SIGTERM, "text", id="SIGTERM-text"),
        pytest.param(signal.SIGINT, "json", id="SIGINT-json", marks=pytest.mark.slow),
    ],
)
@pytest.mark.jvm
def test_broker_prints_only_its_address_and_stops_cleanly(tmp_path, how, style):
    prerequisites.kafka()
    with subprocess.Popen(
        [ACKTREE, "broker", "--port", "0", "--data-dir", tmp_path / "kafka", "--format", style],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as broker:
        assert broker.stdout is not None
        address = broker.stdout.readline().rstrip("\n")
        if style == "json":
            ready = json.loads(address)
            address = ready["bootstrap"]
            os.kill(ready["pid"], 0)
        assert AdminClient({"bootstrap.servers": address}).list_topics(timeout=WAIT_S).brokers
        broker.send_signal(how)
        stdout, stderr = broker.communicate(timeout=WAIT_S)
    assert broker.returncode == 0
    assert stdout == ""
    assert stderr == f"ready: Kafka serves at {address}\n"
    host, port = address.split(":")
    assert host == "127.0.0.1"
    assert not ports.listens(int(port))
    assert (tmp_path / "kafka" / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.slow
@pytest.mark.jvm
def test_broker_stops_cleanly_while_it_is_starting(tmp_path):
    prerequisites.kafka()
    with subprocess.Popen(
        [ACKTREE, "broker", "--port", "0", "--data-dir", tmp_path / "kafka"],
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        await_file(tmp_path / "kafka" / "broker.log")
        broker.terminate()
        stdout, _ = broker.communicate(timeout=WAIT_S)
    assert (broker.returncode, stdout) == (0, "")


@pytest.mark.jvm
def test_broker_passes_its_settings_to_kafka():
    prerequisites.kafka()
    done = acktree("broker", "--port", "0", "-X", "log.roll.hours=0")
    assert done.exit_code == 2
    assert "Invalid value 0 for configuration log.roll.hours" in done.stderr


def test_broker_without_java_says_what_to_install(tmp_path):
    assert_one_sentence(
        acktree("broker", PATH=str(tmp_path), JAVA_HOME=None), "Java 17 or newer", "JAVA_HOME"
    )


def test_a_wrong_java_home_is_not_replaced_by_another_java(tmp_path):
    assert_one_sentence(
        acktree("broker", JAVA_HOME=str(tmp_path)), "Java 17 or newer", f"JAVA_HOME={tmp_path}"
    )


@pytest.mark.parametrize(
    ("prints", "message"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ('java version "1.8.0_452"', "is Java 8"),
        ("what?", "does not print its version"),
    ],
)
def test_broker_refuses_an_old_java(tmp_path, prints, message):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    java.chmod(0o755)
    assert_one_sentence(acktree("broker", JAVA_HOME=str(tmp_path)), "Java 17 or newer", message)


# --- topology


@pytest.fixture
def topology_file(tmp_path: Path, kafka: str, topology_name: str, simulation: Simulation | None) -> Path:
    """A topology whose source topic exists."""
    source = f"{topology_name}.lines"

    def create() -> None:
        admin = make_admin(kafka, {})
        admin.create_topics([NewTopic(source, 3, 1)])[source].result(WAIT_S)

    run_in(simulation, create)
    file = tmp_path / "topology.toml"
    file.write_text(
        f"name = '{topology_name}'\nackers = 4\n"
        f"[spouts.lines]\ntopics = ['{source}']\nemits = ['{topology_name}.words']\n"
        f"[bolts.count]\nreads = ['{topology_name}.words']\n"
    )
    return file


def test_a_dry_run_says_what_apply_then_does(kafka, topology_name, topology_file):
    dry = acktree("topology", "apply", topology_file, "--dry-run", "-b", kafka)
    assert f"publish version 1 of topology {topology_name}" in dry.stdout
    assert_one_sentence(
        acktree("topology", "show", "--topology", topology_name, "-b", kafka), "is not published"
    )
    done = acktree("topology", "apply", topology_file, "-b", kafka)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == dry.stdout


def test_applying_the_same_file_again_publishes_nothing(kafka, topology_name, topology_file):
    acktree("topology", "apply", topology_file, "-b", kafka)
    again = acktree("topology", "apply", topology_file, "-b", kafka)
    assert (again.exit_code, again.stderr) == (0, "")
    assert again.stdout == f"nothing to do: version 1 of topology {topology_name} has the same content\n"


@pytest.mark.simulated
def test_a_topic_of_tuples_belongs_to_one_topology(kafka, topology_name, topology_file, tmp_path):
    acktree("topology", "apply", topology_file, "-b", kafka)
    other = tmp_path / "other.toml"
    other.write_text(topology_file.read_text().replace(f"name = '{topology_name}'", "name = 'other'"))
    for more in ([], ["--dry-run"]):
        refused = acktree("topology", "apply", other, "-b", kafka, *more)
        assert_one_sentence(refused, f"topic '{topology_name}.words'", f"topology '{topology_name}'")
    chained = f"name = 'other'\n[spouts.s]\ntopics = ['{topology_name}.words']\nemits = ['other.words']\n"
    other.write_text(f"{chained}[bolts.b]\nreads = ['other.words']\n")
    assert acktree("topology", "apply", other, "-b", kafka).exit_code == 0
    assert acktree("topology", "apply", topology_file, "-b", kafka).exit_code == 0


@pytest.mark.simulated
def test_show_prints_the_newest_version(kafka, topology_name, topology_file):
    acktree("topology", "apply", topology_file, "-b", kafka)
    topology_file.write_text(topology_file.read_text().replace("ackers = 4", "ackers = 5"))
    grown = acktree("topology", "apply", topology_file, ACKTREE_BOOTSTRAP_SERVER=kafka)
    assert grown.stdout.splitlines()[-1] == f"publish version 2 of topology {topology_name}"
    shown = acktree("topology", "show", "--topology", topology_name, "--format", "json", "-b", kafka)
    published = json.loads(shown.stdout)
    assert (published["name"], published["version"], published["ackers"]) == (topology_name, 2, 5)
    assert len(published["slots"]) == 3
    text = acktree("topology", "show", "--topology", topology_name, "-b", kafka).stdout
    assert text.splitlines()[1].split()[:3] == [topology_name, "2", "5"]


@pytest.mark.simulated
def test_show_lists_every_topology(kafka, topology_name, topology_file):
    acktree("topology", "apply", topology_file, "-b", kafka)
    rows = [line.split() for line in acktree("topology", "show", "-b", kafka).stdout.splitlines()]
    assert rows[0] == ["TOPOLOGY", "VERSION", "ACKERS", "SPOUTS", "BOLTS"]
    assert [topology_name, "1", "4", "lines", "count"] in rows


@pytest.mark.simulated
def test_show_omits_a_topic_that_is_only_named_like_a_registry(kafka, topology_name):
    admin = make_admin(kafka, {})
    for topic in (f"{topology_name}.of-a-town.topology", f"{topology_name}.empty.topology"):
        admin.create_topics([NewTopic(topic, 1)])[topic].result()
    producer = make_producer({"bootstrap.servers": kafka})
    producer.produce(f"{topology_name}.of-a-town.topology", b"streets", b"1")
    producer.flush()
    shown = acktree("topology", "show", "-b", kafka)
    assert shown.exit_code == 0
    assert topology_name not in shown.stdout


def test_a_mistake_in_the_file_is_reported_in_one_sentence(tmp_path):
    file = tmp_path / "topology.toml"
    file.write_text("name = 'x'\nakers = 4\n")
    assert_one_sentence(acktree("topology", "apply", file, "-b", "127.0.0.1:1"), "line 2", "akers")


# --- the root


def test_the_help_lists_every_command():
    done = acktree("--help")
    assert done.exit_code == 0
    for name, command in COMMANDS.items():
        assert f"{name} " in done.stdout
        assert command.summary in done.stdout


def test_every_command_and_verb_has_a_help_text():
    pages = [[name] for name in COMMANDS]
    for page in pages:  # it grows by the verbs
        done = acktree(*page, "--help")
        assert done.exit_code == 0, done.output
        assert f"Usage: acktree {' '.join(page)} [OPTIONS]" in done.stdout, page
        if len(page) == 1:
            command = load(page[0], COMMANDS[page[0]])
            pages += [[*page, verb] for verb in getattr(command, "commands", ())]
    assert ["topology", "apply"] in pages


def test_a_command_imports_only_what_it_needs():
    heavy = {"pyspark", "numba", "pandas", "pyarrow"}
    not_for_broker = heavy | {"numpy", "pydantic", "jgo"}
    not_for_help = not_for_broker | {"confluent_kafka", "fastavro", "rich"}
    # in the order of what they may import, as all run in one process
    refused = {"": not_for_help, "broker": not_for_broker, "topology": heavy}
    program = (
        "import json, sys; from acktree.console.main import main\n"
        "for page in sys.argv[1:]:\n"
        "    main([*page.split(), '--help'], standalone_mode=False)\n"
        "    print('imported:', json.dumps([*sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *refused], capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("imported: ")]
    for (page, modules), line in zip(refused.items(), lines, strict=True):
        assert modules & set(json.loads(line.removeprefix("imported: "))) == set(), page


def test_a_real_process_ends_an_error_with_its_sentence_and_exit_code_2(tmp_path):
    file = tmp_path / "topology.toml"
    file.write_text("name = 'x'\nakers = 4\n")
    command = [ACKTREE, "topology", "apply", file, "-b", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == acktree(*command[1:]).stderr


@pytest.mark.parametrize(
    ("main", "code"),
    [("sys.exit(0)", 0), ("sys.exit()", 0), ("sys.exit(2)", 2), ("sys.exit('text')", 1), ("1 / 0", 1)],
)
def test_a_process_ends_with_its_own_code_and_before_the_exit_functions_of_libraries(main: str, code: int):
    program = (
        "import atexit, ctypes, sys; from acktree.console import main as module\n"
        "system = ctypes.CDLL(None); system.__cxa_atexit(system._exit, 77, None)\n"
        "def main():\n"
        f"    atexit.register(print, 'worked'); {main}\n"
        "module.main = main; module.run()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "worked\n")
    assert ("ZeroDivisionError" in done.stderr) == ("1 / 0" in main)


def test_a_missing_extra_is_named():
    with pytest.raises(
        CommandUnavailable, match=r"needs no_such_package: pip install '\.\[spark\]' in the root of a clone"
    ):
        load("spark", Command("no_such_package.module:spark", "", "spark"))


def test_a_missing_module_of_acktree_is_reported_as_a_bug_not_as_a_missing_extra():
    with pytest.raises(ModuleNotFoundError):
        load("spark", Command("acktree.no_such_module:spark", "", "spark"))


@pytest.mark.parametrize("value", ["linger.ms", "=5", " =5", ""])
def test_a_setting_that_is_not_key_and_value_is_a_usage_error(value):
    done = acktree("topology", "show", "-b", "127.0.0.1:1", "-X", value)
    assert done.exit_code == 2
    assert "is not KEY=VALUE" in done.stderr


def test_the_last_setting_of_a_key_wins():
    assert parse_settings(("a=1", "b=2", "a=3")) == {"a": "3", "b": "2"}


def test_a_bootstrap_server_must_be_given():
    done = acktree("topology", "show")
    assert done.exit_code == 2
    assert "--bootstrap-server" in done.stderr


def test_the_flag_wins_over_the_environment(monkeypatch):
    servers: list[str] = []
    command = click.command()(bootstrap_option(lambda bootstrap: servers.append(bootstrap)))
    monkeypatch.setenv("ACKTREE_BOOTSTRAP_SERVER", "from-environment:1")
    command.main([], standalone_mode=False)
    command.main(["-b", "from-flag:1"], standalone_mode=False)
    assert servers == ["from-environment:1", "from-flag:1"]


@pytest.mark.parametrize("module", ["devbroker.java", "columns", "commands.options", "view.records.payloads"])
def test_the_examples_in_docstrings_run(module):
    outcome = doctest.testmod(import_module(f"acktree.console.{module}"))
    assert outcome.attempted
    assert not outcome.failed
