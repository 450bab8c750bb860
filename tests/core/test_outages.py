"""A broker that is away: what a process logs of it, and that all else is logged as it comes."""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.core import world
from acktree.core.kafka.oauth import TokenFunction
from acktree.core.kafka.outages import QUIET_S, ClientLog, Outage, log_retry
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from deadlines import stretched
from proxy import proxy_of
from simulated_kafka import Simulation, simulated

ACKTREE = Path(sys.executable).with_name("acktree")
REFUSED = "[thrd:b:1/bootstrap]: b:1/bootstrap: Connect to ipv4#1.2.3.4:1 failed: refused (after 0ms in …)"
FIVE_MINUTES_S = 300.0
WAIT_S = stretched(120)
SIMULATED_PROPERTIES = {"bootstrap.servers": "simulated"}


class Cluster:
    """An outage and its clock: attempts that fail while ``is_failing``, probes that find ``is_away``."""

    def __init__(self) -> None:
        self.outage, self.now_s = Outage("b:1"), 0.0
        self.is_failing = self.is_away = False
        self.lines: list[str] = []

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            if self.is_failing:
                self.outage.failed("refused", self.now_s)
            if self.outage.is_watched and (line := self.outage.check(self.now_s, not self.is_away)):
                self.lines.append(line)
            self.now_s += 0.5


def test_an_outage_logs_a_line_when_it_begins_every_minute_and_when_it_ends():
    cluster = Cluster()
    cluster.is_failing = cluster.is_away = True
    cluster.run(FIVE_MINUTES_S)
    cluster.is_failing = cluster.is_away = False
    cluster.run(FIVE_MINUTES_S)
    begins, *minutes, ends = cluster.lines
    assert (
        begins
        == "no connection to Kafka at b:1 (refused); retrying; further failures are logged once a minute"
    )
    assert [line.partition(" (")[0] for line in minutes] == [
        f"no connection to Kafka at b:1 for {seconds} s" for seconds in (60, 120, 180, 240)
    ]
    assert ends == "Kafka at b:1 answers again after 300 s; 600 attempts had failed"


def test_a_connection_that_fails_once_while_the_cluster_answers_is_not_an_outage():
    cluster = Cluster()
    cluster.outage.failed("reset by peer", 0.0)
    cluster.run(QUIET_S + 1)
    assert cluster.lines == []
    assert not cluster.outage.is_watched


def test_one_unreachable_broker_is_an_outage_even_if_the_cluster_answers():
    cluster = Cluster()
    cluster.is_failing = True
    cluster.run(FIVE_MINUTES_S)
    cluster.is_failing = False
    cluster.run(FIVE_MINUTES_S)
    begins, *minutes, ends = cluster.lines
    assert begins.startswith("no connection to a Kafka broker at b:1 (refused); ")
    assert len(minutes) == 4
    assert ends.startswith("Kafka at b:1 answers again after 300 s; ")


def test_a_late_line_of_an_idle_client_begins_no_second_outage():
    cluster = Cluster()
    cluster.is_failing = cluster.is_away = True
    cluster.run(30)
    cluster.is_failing = cluster.is_away = False
    cluster.run(60)
    cluster.outage.failed("refused", cluster.now_s)
    cluster.run(60)
    assert [line.partition(" b:1 ")[2][:7] for line in cluster.lines] == ["(refuse", "answers"]


def test_an_outage_is_over_when_the_calls_it_interrupted_have_been_retried():
    """A worker that waits in a call polls no client: nothing fails for minutes, nor is anything logged."""
    cluster = Cluster()
    cluster.is_failing = cluster.is_away = True
    cluster.run(5)
    cluster.is_failing = False
    cluster.run(FIVE_MINUTES_S)
    cluster.is_away = False
    cluster.run(QUIET_S - 1)
    assert cluster.outage.explains_retry()
    cluster.run(2)
    assert not cluster.outage.explains_retry()
    assert cluster.lines[-1].startswith("Kafka at b:1 answers again after 305 s; ")


def test_two_outages_are_two():
    cluster = Cluster()
    for _ in range(2):
        cluster.is_failing = cluster.is_away = True
        cluster.run(10)
        cluster.is_failing = cluster.is_away = False
        cluster.run(60)
    assert len(cluster.lines) == 4


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    """A simulation wherever the suite runs: this is about minutes of virtual time."""
    with simulated() as made:
        yield made


@contextmanager
def cut_off(simulation: Simulation) -> Iterator[None]:
    """Let the broker not answer this process."""
    away = simulation.world.cut_off
    away.add(simulation.kernel.current.process)
    yield
    away.clear()


def fail_for(seconds: float, *clients: ClientLog) -> None:
    """Let clients log as librdkafka does, and the process its own retries, for so long."""
    until_s = world.monotonic_s() + seconds
    while world.monotonic_s() < until_s:
        for number, client in enumerate(clients):
            client.log(logging.ERROR, "%s [%s] %s", "FAIL", f"acktree#{number}", REFUSED)
        log_retry(logging.getLogger("acktree.bolt"), "commit postponed", action="commit_postponed")
        world.sleep(0.05)


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was logged of the simulated cluster, and of what a process tries again."""
    return [
        record
        for record in caplog.records
        if record.name == "acktree.bolt" or "Kafka at simulated " in record.getMessage()
    ]


def test_an_outage_ends_without_a_line_once_its_last_client_is_closed(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
):
    with cut_off(simulation):
        fail_for(10, ClientLog(SIMULATED_PROPERTIES))
        world.sleep(FIVE_MINUTES_S)
        begins, *more = logged(caplog)
        assert more == []
        assert begins.getMessage().startswith("no connection to Kafka at simulated (")
        fail_for(10, ClientLog(SIMULATED_PROPERTIES))
        assert len(logged(caplog)) == 2
        world.sleep(60)


def test_all_clients_of_a_process_and_its_own_retries_have_the_same_outage(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
):
    clients = [ClientLog(SIMULATED_PROPERTIES) for _ in range(3)]
    with cut_off(simulation):
        fail_for(FIVE_MINUTES_S, *clients)
    world.sleep(60)
    begins, *minutes, ends = logged(caplog)
    assert begins.getMessage().startswith(
        "no connection to Kafka at simulated (b:1/bootstrap: Connect to ipv4#1.2.3.4:1 failed: refused);"
    )
    assert len(minutes) in (4, 5)
    assert "answers again after 30" in ends.getMessage()
    assert [record.levelname for record in (begins, *minutes, ends)][-2:] == ["ERROR", "WARNING"]


def test_a_line_that_is_not_about_a_failed_attempt_is_always_logged(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
):
    client = ClientLog(SIMULATED_PROPERTIES)

    def log(kind: str) -> None:
        client.log(logging.WARNING, "%s [%s] %s", kind, "acktree#1", "[thrd:main]: a text")

    log("SESSTMOUT")
    with cut_off(simulation):
        fail_for(10, client)
        log("SESSTMOUT")
        log("CONFWARN")
    world.sleep(60)  # until the outage is over for its thread, too
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if "a text" in text] == [
        "SESSTMOUT [acktree#1] [thrd:main]: a text",
        "CONFWARN [acktree#1] [thrd:main]: a text",
    ]


def test_an_outage_ends_even_if_at_first_no_token_was_there_to_query_the_cluster(
    simulation: Simulation, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    made: list[dict[str, Any]] = []
    admin = simulation.world.admin

    def without_a_token(settings: dict[str, Any], logger: world.ClientLogger) -> Any:
        made.append(settings)
        if len(made) < 5:
            raise KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))
        return admin(settings, logger)

    monkeypatch.setattr(simulation.world, "admin", without_a_token)
    function = TokenFunction("auth:token", lambda _config: ("", 0))
    client = ClientLog({**SIMULATED_PROPERTIES, "oauth_cb": function})
    with cut_off(simulation):
        fail_for(10, client)
    world.sleep(60)
    _, ends = logged(caplog)
    assert "answers again after" in ends.getMessage()
    assert made[-1]["oauth_cb"] is function


def test_a_retry_without_an_outage_is_logged(simulation: Simulation, caplog: pytest.LogCaptureFixture):
    log_retry(logging.getLogger("acktree.bolt"), "commit postponed: %s", "why", action="commit_postponed")
    (record,) = [record for record in caplog.records if record.name == "acktree.bolt"]
    assert (record.getMessage(), record.__dict__["action"]) == ("commit postponed: why", "commit_postponed")


# --- with real processes

TOPOLOGY = """
name = "{name}"
ackers = 1
[spouts.numbers]
emits = ["{name}.a"]
[bolts.sink]
reads = ["{name}.a"]
"""
JOBS = """
from acktree.producers import BasicBolt, Spout
class Sink(BasicBolt):
    def execute(self, tup, emitter):
        pass
class Numbers(Spout):
    def next_tuple(self, emitter):
        pass
def pass_on(rows):
    return rows.select("value", "anchors")
"""
ROLES = {
    "acker": ["acker", "run"],
    "bolt": ["bolt", "run", "jobs:Sink", "--bolt", "sink"],
    "spout": ["spout", "run", "jobs:Numbers", "--spout", "numbers"],
}


class Roles:
    """Processes of some roles, and what each prints on stderr."""

    def __init__(self, folder: Path, bootstrap: str, topology: str) -> None:
        self._folder, self._where = folder, ["--topology", topology, "-b", bootstrap]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "jobs.py").write_text(JOBS)

    def start(self, role: str, command: list[str]) -> None:
        with (self._folder / role).open("wb") as log:
            self._processes[role] = subprocess.Popen(
                [ACKTREE, *command, *self._where], stderr=log, stdout=log, cwd=self._folder
            )

    def lines(self, role: str) -> list[str]:
        return (self._folder / role).read_text().splitlines()

    def exit_codes(self) -> set[int]:
        return {process.wait(WAIT_S) for process in self._processes.values()}

    def await_line(self, text: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        for role in self._processes:
            while not any(text in line for line in self.lines(role)):
                assert time.monotonic() < deadline_s, f"{role}: no {text!r} in {self.lines(role)}"
                time.sleep(0.1)

    def close(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture
def start_roles(tmp_path: Path, unique: str) -> Iterator[Callable[[str], Roles]]:
    made: list[Roles] = []

    def start(bootstrap: str) -> Roles:
        made.append(Roles(tmp_path, bootstrap, unique))
        return made[-1]

    yield start
    for roles in made:
        roles.close()


def test_a_wrong_address_is_one_sentence_in_every_role(start_roles: Callable[[str], Roles]):
    roles = start_roles("127.0.0.1:1")
    commands = {
        "acker": ROLES["acker"],
        "bolt": ROLES["bolt"],
        "spark": ["spark", "run", "jobs:Sink", "--spout", "numbers"],
        "ui": ["ui", "--port", "0"],
    }
    for role, command in commands.items():
        roles.start(role, command)
    assert roles.exit_codes() == {2}
    for role in commands:
        (line,) = roles.lines(role)
        assert line.startswith("error: no Kafka broker answers at 127.0.0.1:1 "), role


@pytest.mark.promise("the broker, or the connection to it")
def test_processes_cut_off_log_one_line_and_another_when_the_broker_answers_again(
    bootstrap: str, unique: str, start_roles: Callable[[str], Roles]
):
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=unique)), {})
    with proxy_of(bootstrap) as proxy:
        roles = start_roles(proxy.bootstrap)
        for role, command in ROLES.items():
            roles.start(role, command)
        roles.await_line("ready ")
        before = {role: len(roles.lines(role)) for role in ROLES}
        proxy.cut()
        roles.await_line(f"no connection to Kafka at {proxy.bootstrap} (")
        time.sleep(3)  # sixty attempts and more of each
        assert {role: len(roles.lines(role)) - before[role] for role in ROLES} == dict.fromkeys(ROLES, 1)
        proxy.restore()
        roles.await_line(f"Kafka at {proxy.bootstrap} answers again after ")
        assert {role: len(roles.lines(role)) - before[role] for role in ROLES} == dict.fromkeys(ROLES, 2)


@pytest.mark.slow
def test_a_spark_application_that_is_cut_off_ends_with_one_sentence(
    bootstrap: str, unique: str, start_roles: Callable[[str], Roles]
):
    admin, source = AdminClient({"bootstrap.servers": bootstrap}), f"{unique}.source"
    admin.create_topics([NewTopic(source, 1)])[source].result()
    lines = f'[spouts.lines]\ntopics = ["{source}"]\nemits = ["{unique}.a"]'
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=unique) + lines), {})
    with proxy_of(bootstrap) as proxy:
        roles = start_roles(proxy.bootstrap)
        roles.start("spark", ["spark", "run", "jobs:pass_on", "--spout", "lines"])
        roles.await_line("ready ")
        proxy.cut()
        assert roles.exit_codes() == {2}
    sentence = roles.lines("spark")[-1]
    assert sentence.startswith("error: ")
    assert proxy.bootstrap in sentence
