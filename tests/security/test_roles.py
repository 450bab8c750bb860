"""Every role as its own user with the rights that `acktree acl plan` gives and no others, to the last ack.

The same run is searched for the password that all of them use and for the page's token: logs and tracebacks,
topics, pages, checkpoint, Spark's event log, command lines.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from acktree.console.devbroker import ports
from acktree.console.main import main
from acktree.core.reports.stats import decode_report
from deadlines import stretched
from security.secure_broker import PASSWORD, WAIT_S, SecureBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ACKTREE = Path(sys.executable).with_name("acktree")
RUN_S = stretched(300)
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT)
LINES = 20
NUMBERS = 5
TOKEN = "canary-token-8c21f0aa"
SECRETS = (PASSWORD.encode(), TOKEN.encode())
SECRET_FILES = (".properties", ".token")
PAGES = (
    *("", "status.json", "pending", "pending.json", "dead-letters", "dead-letters.json", "health", "login"),
    *("trace?topic=wall.lines&partition=0&offset=0", "trace.json?topic=wall.lines&partition=0&offset=0"),
    *("trace?root=1", "dead-letters/0/7", "nothing", "static/live.js"),
)

TOPOLOGY = """
name = "wall"
[spouts.lines]
topics = ["wall.lines"]
emits = ["wall.words"]
[spouts.numbers]
emits = ["wall.words"]
[bolts.copy]
reads = ["wall.words"]
emits = ["wall.out"]
exactly_once = true
[bolts.count]
reads = ["wall.out"]
"""
JOBS = f"""
from pathlib import Path
from acktree.producers import BasicBolt, Spout

def words(lines):
    return lines.select("value", "anchors")

class Copy(BasicBolt):
    name = "copy"
    def execute(self, tup, emit):
        emit(tup.value)

class Count(BasicBolt):
    name = "count"
    def execute(self, tup, emit):
        pass

class Broken(Count):
    def prepare(self, *_):
        raise RuntimeError("broken on purpose")

class Numbers(Spout):
    name = "numbers"
    emitted = acked = 0
    def next_tuple(self, emitter):
        if self.emitted < {NUMBERS}:
            self.emitted += 1
            emitter.emit(b"number", message_id=self.emitted)
    def ack(self, message):
        self.acked += 1
        if self.acked == {NUMBERS}:
            Path("numbers-are-acked").touch()
"""


class Guarded:
    """Runs commands, each as a user of its own who has the planned rights of one role."""

    def __init__(self, secure: SecureBroker, folder: Path) -> None:
        self._secure, self.folder = secure, folder
        self.running: list[subprocess.Popen[bytes]] = []

    def grant(self, user: str, role: str, *options: str) -> None:
        """Let the administrator give a new user the rights of a role."""
        self._secure.add_user(user)
        path = self.folder / f"{user}.properties"
        path.write_text("".join(f"{k}={v}\n" for k, v in self._secure.properties(user).items()))
        plan = ["acl", "plan", "--role", role, "--principal", f"User:{user}", *options, "--execute"]
        done = CliRunner().invoke(main, [*plan, "-b", self._secure.plain])
        assert done.exit_code == 0, done.output

    def start(self, user: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command as a user; its output goes to a file."""
        log = (self.folder / f"{user}.log").open("ab")
        options = ["-b", self._secure.scram, "--command-config", f"{user}.properties"]
        process = subprocess.Popen(
            [ACKTREE, *command, *options],
            cwd=self.folder,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
        self.running.append(process)
        return process

    def output(self, user: str) -> str:
        return (self.folder / f"{user}.log").read_text(errors="replace")

    def await_output(self, user: str, text: str) -> None:
        self.until(lambda: text in self.output(user), f"{user} to say {text!r}:\n{self.output(user)[-2000:]}")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + RUN_S
        while not holds():
            assert time.monotonic() < deadline_s, f"waited {RUN_S} s for {what}"
            time.sleep(0.1)

    def stop(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            assert process.wait(RUN_S) not in CRASHES


@pytest.fixture
def guarded(secure: SecureBroker, tmp_path: Path) -> Iterator[Guarded]:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "events").mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.eventLog.enabled true\nspark.eventLog.compress false\n"
        f"spark.eventLog.dir {(tmp_path / 'events').as_uri()}\n"
        "spark.sql.shuffle.partitions 2\n"
    )
    running = Guarded(secure, tmp_path)
    yield running
    running.stop()


@pytest.mark.slow
def test_every_role_works_with_its_rights_alone_and_no_process_shows_the_password(
    secure: SecureBroker, guarded: Guarded
):
    secure.admin.create_topics([NewTopic("wall.lines", 2)])["wall.lines"].result(WAIT_S)
    producer = Producer({"bootstrap.servers": secure.plain, "log_level": 0})
    for number in range(LINES):
        producer.produce("wall.lines", b"line %d" % number)
    assert producer.flush(WAIT_S) == 0
    guarded.grant("operator", "operator", "--file", str(guarded.folder / "topology.toml"))
    assert guarded.start("operator", "topology", "apply", "topology.toml").wait(RUN_S) == 0
    for user, *role in (
        ("acker", "acker"),
        ("copier", "bolt", "--component", "copy"),
        ("counter", "bolt", "--component", "count"),
        ("numbers", "spout", "--component", "numbers"),
        ("spark", "spark", "--component", "lines"),
        ("ui", "ui"),
    ):
        guarded.grant(user, *role, "--topology", "wall")
    port, ui_port = ports.free_ports(2)
    guarded.start("acker", "acker", "run", "--topology", "wall", "--metrics-port", str(port))
    (guarded.folder / "ui.token").write_text(TOKEN)
    guarded.start("ui", "ui", "--topology", "wall", "--port", str(ui_port), "--token-file", "ui.token")
    assert guarded.start("counter", "bolt", "run", "jobs:Broken", "--topology", "wall").wait(RUN_S) == 2
    assert "bolt count raised RuntimeError: broken on purpose (in " in guarded.output("counter")
    guarded.start("copier", "bolt", "run", "jobs:Copy", "--topology", "wall")
    guarded.start("counter", "bolt", "run", "jobs:Count", "--topology", "wall")
    guarded.start("numbers", "spout", "run", "jobs:Numbers", "--topology", "wall")
    spark = start_spark(guarded)
    guarded.await_output("spark", "ready spout lines")
    assert not in_command_lines()
    assert spark.wait(RUN_S) == 0, guarded.output("spark")[-3000:]
    guarded.until((guarded.folder / "numbers-are-acked").exists, "the numbers")
    guarded.until(lambda: b'"error":null' in fetch(ui_port, "status.json"), "a look of the page")
    pages = {path: fetch(ui_port, path) for path in PAGES} | {"metrics": fetch(port, "metrics")}
    assert b"wall.words" in pages[""]
    assert b"acktree_acker_acked_total" in pages["metrics"]
    assert_reports_can_be_read(secure, guarded)

    take_away(secure, "User:spark", "wall.words")
    producer.produce("wall.lines", b"one more")
    producer.flush(WAIT_S)
    assert start_spark(guarded).wait(RUN_S) == 2
    sentence = guarded.output("spark").rstrip().splitlines()[-1]
    assert re.search(r"topic wall\.words: .*Broker: Topic authorization failed", sentence)

    guarded.stop()
    written = {str(path.relative_to(guarded.folder)): path.read_bytes() for path in files(guarded.folder)}
    assert any(name.startswith("events/") for name in written)
    assert any(name.startswith("checkpoint/") for name in written)
    assert showing({**pages, **every_record(secure), **written}) == []


def test_the_check_finds_a_secret_wherever_it_is_shown(tmp_path: Path):
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "application").write_bytes(b"spark." + SECRETS[0])
    (tmp_path / "acker.log").write_bytes(b"Traceback " + SECRETS[1])
    (tmp_path / "clean.log").write_bytes(b"canary")
    (tmp_path / "ui.properties").write_bytes(SECRETS[0])
    written = {path.name: path.read_bytes() for path in files(tmp_path)}
    assert sorted(showing(written)) == ["acker.log", "application"]
    command = [sys.executable, "-c", "print('here', flush=True); input()", PASSWORD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        assert shown.stdout.readline() == b"here\n"
        assert shown.pid in in_command_lines()
        shown.communicate(b"\n")


def files(folder: Path) -> list[Path]:
    """Return all that was written, but where the secrets come from."""
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix not in SECRET_FILES]


def showing(places: Mapping[str, bytes]) -> list[str]:
    """Return the names of the places that show a secret."""
    return [name for name, shown in places.items() if any(secret in shown for secret in SECRETS)]


def fetch(port: int, path: str) -> bytes:
    """Return a page, of whatever status, as a visitor with the token sees it."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
            return answer.headers.as_bytes() + answer.read()
    except urllib.error.HTTPError as error:
        return error.headers.as_bytes() + error.read()
    except urllib.error.URLError:
        return b""  # not there yet


def start_spark(guarded: Guarded) -> subprocess.Popen[bytes]:
    command = ["spark", "run", "jobs:words", "--topology", "wall", "--spout", "lines"]
    command += ["--trigger", "available-now", "--checkpoint", "checkpoint"]
    return guarded.start("spark", *command, SPARK_CONF_DIR=str(guarded.folder))


def in_command_lines() -> list[int]:
    """Return the processes whose command line shows a secret."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue  # it has ended
        if showing({"": line}):
            found.append(int(path.parent.name))
    return found


def assert_reports_can_be_read(secure: SecureBroker, guarded: Guarded) -> None:
    """Read, as the user of the status page, a report of every role."""
    reader = Consumer(
        {**secure.properties("ui"), "bootstrap.servers": secure.scram, "group.id": "wall.registry"}
    )
    reader.assign([TopicPartition("wall.stats", 0, 0)])
    roles: set[str] = set()

    def everyone_has_reported() -> bool:
        message = reader.poll(1)
        if message is not None:
            assert message.error() is None, message.error()
            roles.add(decode_report(message.value() or b"").component)
        return roles >= {"acker", "copy", "count", "numbers", "lines"}

    guarded.until(everyone_has_reported, f"reports, had {roles}")
    reader.close()


def take_away(secure: SecureBroker, principal: str, topic: str) -> None:
    gone = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        principal,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in secure.admin.delete_acls([gone]).values():
        assert future.result(WAIT_S)


def every_record(secure: SecureBroker) -> dict[str, bytes]:
    """Return key, value and headers of everything on the topics of the topology, by coordinates."""
    consumer = Consumer(
        {
            "bootstrap.servers": secure.plain,
            "group.id": "search",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    topics = consumer.list_topics(timeout=WAIT_S).topics
    places = [
        TopicPartition(topic, partition, 0)
        for topic in topics
        if topic.startswith("wall.")
        for partition in topics[topic].partitions
    ]
    consumer.assign(places)
    found: dict[str, bytes] = {}
    ends = 0
    while ends < len(places):
        message = consumer.poll(WAIT_S)
        assert message is not None
        if message.error() is not None:
            ends += 1
            continue
        name = f"{message.topic()}/{message.partition()}/{message.offset()}"
        headers = repr(message.headers()).encode()
        found[name] = b" ".join((message.key() or b"", message.value() or b"", headers))
    consumer.close()
    assert len(found) > LINES
    return found
