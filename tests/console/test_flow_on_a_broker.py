"""`acktree pause`, `drain`, `resume` and `topology set` against a real broker and a running spout."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from acktree.console.commands.changing import topology
from acktree.console.main import main
from acktree.core import world
from acktree.core.kafka.clients import make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.producers.collecting.spout_emitter import SpoutEmitter
from acktree.producers.spout import Spout
from acktree.producers.spouts.spout_loop import SpoutWorker
from deadlines import stretched
from producers.cluster import until
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

DEADLINE_S = stretched(60)
TOPOLOGY = """
name = "{name}"
ackers = 0
[spouts.ticks]
emits = ["{name}.ticks"]
max_pending = 100
"""


class PacedTicks(Spout):
    def __init__(self) -> None:
        self.next, self.is_active = 0, True

    def next_tuple(self, emitter: SpoutEmitter) -> None:
        assert self.is_active
        self.next += 1
        emitter.emit(b"tick", self.next)
        world.sleep(0.005)

    def deactivate(self) -> None:
        self.is_active = False

    def activate(self) -> None:
        self.is_active = True


@pytest.fixture
def name(kafka: str, unique: str, simulation: Simulation | None) -> str:
    published = parse_topology(TOPOLOGY.format(name=unique))
    run_in(simulation, lambda: apply_topology(kafka, published, {}))
    return unique


@contextmanager
def running(bootstrap: str, name: str) -> Iterator[PacedTicks]:
    spout = PacedTicks()
    worker = SpoutWorker(bootstrap, name, spout)
    thread = world.start_thread(worker.run, "ticks")
    try:
        yield spout
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


def acktree(bootstrap: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-b", bootstrap])


@pytest.mark.real
def test_a_running_spout_and_its_next_process_apply_a_flow_record(kafka: str, name: str):
    with running(kafka, name) as spout:
        until(lambda: spout.next, "an emission")
        plan = acktree(kafka, "pause", name)
        assert plan.stdout == (
            "plan, nothing has been changed yet:\n"
            f"spout ticks of topology {name}: running -> paused, it emits nothing, neither new records nor "
            "replays\n"
        )
        assert "add --execute" in plan.stderr
        assert spout.is_active
        drained = acktree(kafka, "drain", name, "--spout", "ticks", "--execute", "--timeout", "50s")
        assert drained.exit_code == 0, drained.output
        assert "spout ticks: 0 pending" in drained.stderr
        assert not spout.is_active
        assert "draining" in acktree(kafka, "describe", "--topology", name).stdout
    with running(kafka, name) as later:
        assert acktree(kafka, "pause", name, "--execute").exit_code == 0
        until(lambda: not later.is_active, "a deactivate")
        assert later.next == 0
        assert acktree(kafka, "resume", name, "--execute").exit_code == 0
        until(lambda: later.next, "an emission after the resume")


def test_a_drain_that_no_process_applies_exits_with_1_and_says_so(kafka: str, name: str):
    done = acktree(kafka, "drain", name, "--execute", "--timeout", "1s", "--format", "json")
    assert done.exit_code == 1
    (entry,) = json.loads(done.stdout)["spouts"]
    assert (entry["before"], entry["after"]) == ("running", "draining")
    assert "0 of 1 tasks report that they have applied it" in done.stderr
    assert "it continues draining" in done.stderr


@pytest.mark.parametrize("command", ["pause", "resume", "drain"])
def test_an_unknown_spout_is_refused_with_those_that_exist(kafka: str, name: str, command: str):
    done = acktree(kafka, command, name, "--spout", "tocks", "--execute")
    assert done.exit_code == 2
    assert f"topology {name} has no spout 'tocks'; it has: ticks" in done.stderr


def test_a_malformed_flow_record_changes_nothing(kafka: str, name: str):
    assert acktree(kafka, "pause", name, "--execute").exit_code == 0
    producer = make_producer({"bootstrap.servers": kafka})
    for key, value in ((b"flow/ticks", b"{"), (b"flow/ticks", b""), (b"flow/", b"{}")):
        producer.produce(f"{name}.topology", value, key)
    assert producer.flush(30) == 0
    history = read_history(kafka, name, {})
    assert history.flow("ticks").flow == "paused"
    assert history.latest.version == 1


def test_a_setting_is_changed_as_the_next_version(kafka: str, name: str):
    plan = acktree(kafka, "topology", "set", name, "--spout", "ticks", "max_pending=7")
    assert plan.stdout == (
        "plan, nothing has been changed yet:\n"
        f"spouts.ticks.max_pending: 100 -> 7\npublish version 2 of topology {name}\n"
    )
    assert read_history(kafka, name, {}).latest.version == 1
    done = acktree(kafka, "topology", "set", name, "--spout", "ticks", "max_pending=7", "--execute")
    assert done.exit_code == 0, done.output
    assert read_history(kafka, name, {}).latest.spouts["ticks"].max_pending == 7


def test_a_setting_does_not_revert_another_one_set_meanwhile(
    kafka: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    def two_at_once(*given: Any) -> Any:
        monkeypatch.setattr(topology, "with_settings", with_settings)
        other = acktree(kafka, "topology", "set", name, "message_timeout_s=7", "--execute")
        assert other.exit_code == 0, other.output
        return with_settings(*given)

    with_settings = topology.with_settings
    monkeypatch.setattr(topology, "with_settings", two_at_once)
    done = acktree(kafka, "topology", "set", name, "--spout", "ticks", "max_pending=7", "--execute")
    assert (done.exit_code, "version 2 was published meanwhile" in done.stderr) == (2, True), done.output
    latest = read_history(kafka, name, {}).latest
    assert (latest.version, latest.message_timeout_s, latest.spouts["ticks"].max_pending) == (2, 7.0, 100)
    again = acktree(kafka, "topology", "set", name, "--spout", "ticks", "max_pending=7", "--execute")
    assert again.exit_code == 0, again.output
    latest = read_history(kafka, name, {}).latest
    assert (latest.message_timeout_s, latest.spouts["ticks"].max_pending) == (7.0, 7)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--spout", "ticks", "max_pending=0"], "spouts.ticks.max_pending: 0 is invalid"),
        (["--spout", "ticks", "max_pendin=5"], "spouts.ticks.max_pendin: unknown key; must be one of:"),
        (["--spout", "tocks", "max_pending=5"], "has no spouts.tocks; it has: ticks"),
        (["--spout", "ticks", "max_pending"], "'max_pending' is not a setting; write KEY=VALUE"),
        (["--spout", "ticks", "spork.complete=batch"], "spouts.ticks.spork.complete: unknown key"),
        (["name=other"], "name cannot be changed"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_key(kafka: str, name: str, arguments: list[str], said: str):
    done = acktree(kafka, "topology", "set", name, *arguments, "--execute")
    assert done.exit_code == 2
    assert said in done.stderr
    assert read_history(kafka, name, {}).latest.version == 1
