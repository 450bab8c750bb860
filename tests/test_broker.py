"""The development broker: it serves, keeps its data, and never outlives its owner."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import prerequisites
from acktree.console.devbroker import jars, ports
from acktree.console.devbroker.broker import AlreadyRunning, BrokerDied, LocalBroker
from acktree.console.devbroker.broker_files import (
    BrokerFiles,
    FormatFailed,
    ReservedSetting,
    new_cluster_id,
)
from acktree.console.devbroker.ports import PortUnavailable
from deadlines import stretched

pytestmark = [pytest.mark.xdist_group("broker"), pytest.mark.jvm]
WAIT_S = stretched(120)


def write(bootstrap: str, value: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(WAIT_S)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce("kept", value)
    assert producer.flush(WAIT_S) == 0


def read(bootstrap: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    consumer.assign([TopicPartition("kept", 0, 0)])
    message = consumer.poll(WAIT_S)
    consumer.close()
    return message.value() if message is not None else None


def cluster_id(bootstrap: str) -> str:
    return AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=WAIT_S).cluster_id


def await_end(pid: int) -> bool:
    """Wait for the end of a process that need not be our child; False if it outlives the deadline."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(wait([process], WAIT_S))
    finally:
        os.close(process)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``broker``."""
    return tmp_path_factory.mktemp("broker") / "kafka"


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[LocalBroker]:
    """One running broker, for the tests that neither stop nor configure it."""
    prerequisites.kafka()
    with LocalBroker(data_dir=folder) as running:
        yield running


@pytest.mark.slow
def test_records_cluster_id_and_address_survive_a_kill_and_a_restart(own_broker, tmp_path):
    first = own_broker(data_dir=tmp_path / "kafka")
    address, cluster, pid = first.bootstrap, cluster_id(first.bootstrap), first.pid
    write(address, b"a record")
    first.kill()
    assert await_end(pid)
    assert not ports.listens(int(address.split(":")[1]))
    first.start()
    assert (first.bootstrap, cluster_id(address), read(address)) == (address, cluster, b"a record")
    pid = first.pid
    first.stop()
    assert await_end(pid)
    second = own_broker(data_dir=tmp_path / "kafka")
    assert (cluster_id(second.bootstrap), read(second.bootstrap)) == (cluster, b"a record")


@pytest.mark.slow
def test_waiting_for_a_dead_broker_raises_and_stopping_it_twice_removes_its_folder(
    own_broker, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broker = own_broker(data_dir=None)
    assert [path.name for path in tmp_path.iterdir()] != []
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(BrokerDied, match="code -9"):
        broker.wait()
    broker.stop()
    assert [path.name for path in tmp_path.iterdir()] == []
    broker.stop()
    broker.kill()


@pytest.mark.slow
def test_the_jvm_ends_when_its_owner_is_killed(tmp_path):
    prerequisites.kafka()
    program = (
        "import signal, sys; from acktree.console.devbroker.broker import LocalBroker;"
        "print(LocalBroker(data_dir=sys.argv[1]).start().pid, flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "kafka"], stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        jvm = int(owner.stdout.readline())
        owner.kill()
    assert await_end(jvm)


@pytest.mark.slow
def test_the_jvm_is_not_in_the_session_of_its_owner(broker):
    assert os.getsid(broker.pid) == broker.pid != os.getsid(0)


@pytest.mark.slow
def test_the_broker_is_reachable_from_loopback_only(broker):
    with socket.socket() as neighbour:  # refused if the broker listened on every address
        neighbour.bind(("127.0.0.2", int(broker.bootstrap.split(":")[1])))


@pytest.mark.slow
def test_asking_for_a_topic_does_not_create_it(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000})
    failures = []
    producer.produce("misspelled", b"", on_delivery=lambda error, _message: failures.append(error))
    producer.flush(WAIT_S)
    assert failures[0] is not None
    assert "misspelled" not in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics().topics


@pytest.mark.slow
def test_a_running_broker_is_not_started_twice(broker):
    with pytest.raises(AlreadyRunning):
        broker.start()


@pytest.mark.slow
def test_a_second_broker_on_one_folder_is_refused_and_the_first_keeps_serving(broker, folder):
    """In a process of its own, which says so in one sentence and has written nothing."""
    settings, before = folder / "server.properties", set(folder.iterdir())
    written_ns = settings.stat().st_mtime_ns
    command = [Path(sys.executable).with_name("acktree"), "broker", "--port", "0", "--data-dir", folder]
    second = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert second.returncode == 2
    assert second.stdout == ""
    assert second.stderr == (
        f"error: another broker runs in the folder {folder}: stop it, or give another --data-dir\n"
    )
    assert (set(folder.iterdir()), settings.stat().st_mtime_ns) == (before, written_ns)
    assert cluster_id(broker.bootstrap)


def test_a_port_in_use_is_reported_before_anything_starts(tmp_path):
    prerequisites.kafka()
    with socket.create_server((ports.LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortUnavailable, match=f"port {port} cannot be used .*in use"):
            LocalBroker(port=port, data_dir=tmp_path / "kafka").start()
    assert not (tmp_path / "kafka" / "data").exists()


@pytest.mark.slow
def test_a_free_port_that_another_process_takes_is_replaced(own_broker, monkeypatch):
    with socket.create_server((ports.LOOPBACK, 0)) as faster:
        lost = faster.getsockname()[1]
        draws = [[lost, *ports.free_ports(2)], ports.free_ports(3)]
        monkeypatch.setattr(ports, "free_ports", lambda _count: draws.pop(0))
        broker = own_broker()
    assert broker.bootstrap != f"{ports.LOOPBACK}:{lost}"
    assert not draws


def test_the_end_of_a_log_has_causes_and_no_stack_frames(tmp_path):
    files = BrokerFiles(tmp_path, {})
    files.log_file.write_text("java.lang.Cause: lock\n" + "\tat a.b.c(D.java:1)\n" * 1000 + "x" * 9000 + "\n")
    tail = files.log_tail()
    assert "java.lang.Cause: lock" in tail
    assert "at a.b.c" not in tail
    assert len(tail) < 1000


@pytest.mark.slow
def test_a_setting_that_kafka_refuses_is_reported_with_kafkas_message(tmp_path):
    prerequisites.kafka()
    with pytest.raises(FormatFailed, match=r"Invalid value many for configuration num\.network\.threads"):
        LocalBroker(data_dir=tmp_path, settings={"num.network.threads": "many"}).start()


def test_a_setting_derived_from_port_or_folder_is_refused(tmp_path):
    with pytest.raises(ReservedSetting, match="listeners"):
        BrokerFiles(tmp_path, {"listeners": "PLAINTEXT://0.0.0.0:9092"})


@pytest.mark.slow
def test_a_start_that_is_interrupted_leaves_nothing_running(monkeypatch, tmp_path):
    prerequisites.kafka()
    broker = LocalBroker(data_dir=tmp_path / "kafka")
    pids = []

    def interrupt(_port: int) -> bool:
        pids.append(broker.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(ports, "listens", interrupt)
    with pytest.raises(KeyboardInterrupt):
        broker.start()
    assert await_end(pids[0])


def test_a_cluster_id_never_looks_like_an_option():
    drawn = {new_cluster_id() for _ in range(2_000)}
    assert len(drawn) == 2_000
    assert {len(cluster_id) for cluster_id in drawn} == {22}
    assert not any("-" in cluster_id for cluster_id in drawn)


def test_free_ports_are_distinct_and_free():
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert all(ports.refusal(port) is None for port in found)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain 1:2=3", "plain 1:2=3"),
        ("back\\slash", r"back\u005cslash"),
        ("ü\n🙂", r"\u00fc\u000a\ud83d\ude42"),
    ],
)
def test_a_property_value_is_escaped_for_java(tmp_path, value, written):
    files = BrokerFiles(tmp_path, {"some.setting": value})
    files.write_settings(1, 2, {})
    assert f"some.setting={written}\n" in files.settings_file.read_text("ascii")


class FakeArtifact:
    """A jgo artifact whose first fetch is cut off."""

    def __init__(self, jar: Path) -> None:
        self.jar = jar
        self.fetches = 0

    def resolve(self) -> Path:
        if not self.jar.exists():
            self.fetches += 1
            if self.fetches == 1:
                self.jar.write_bytes(b"PK\x03\x04 and then the network went away")
            else:
                zipfile.ZipFile(self.jar, "w").close()
        return self.jar


@pytest.fixture
def fetched(tmp_path, monkeypatch) -> list[FakeArtifact]:
    """Every artifact that a stand-in for jgo was asked for."""
    asked: list[FakeArtifact] = []

    def resolve(_coordinates: str) -> list[FakeArtifact]:
        asked.append(FakeArtifact(tmp_path / "kafka.jar"))
        return asked[-1:]

    monkeypatch.setitem(sys.modules, "jgo", types.SimpleNamespace(resolve=resolve))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return asked


def test_jars_are_resolved_once(fetched):
    assert jars.broker_jars() == jars.broker_jars()
    assert len(fetched) == 1


def test_a_truncated_jar_is_fetched_again(fetched):
    (jar,) = jars.broker_jars()
    assert fetched[0].fetches == 2
    assert zipfile.is_zipfile(jar)


def test_a_missing_jar_is_fetched_again(fetched):
    (jar,) = jars.broker_jars()
    jar.unlink()
    assert jars.broker_jars() == [jar]
    assert jar.exists()
    assert len(fetched) == 2


def test_changed_coordinates_are_resolved_again(fetched, monkeypatch):
    jars.broker_jars()
    monkeypatch.setattr(jars, "COORDINATES", ("another:kafka:5",))
    jars.broker_jars()
    assert len(fetched) == 2


@pytest.mark.slow
def test_a_failed_fetch_is_an_error(fetched, monkeypatch):
    def no_network(_coordinates: str) -> None:
        raise RuntimeError("name resolution failed")

    monkeypatch.setattr(sys.modules["jgo"], "resolve", no_network)
    with pytest.raises(jars.JarsUnavailable, match="name resolution failed"):
        jars.broker_jars()
    assert not fetched
