"""Roles `ui` and `operator` under guard: each works with its list, needs each right of it, and may no more.

What a role lacks is said in one sentence; it never looks as if nothing were there.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyroaring import BitMap64
from starlette.testclient import TestClient

from acktree.console.main import main
from acktree.console.page.app import StatusPage
from acktree.console.page.serving.frame import PageSettings
from acktree.console.rights import Right, Role, rights
from acktree.core import world
from acktree.core.edges import EdgeSource
from acktree.core.reports.stats import Report
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.wire.codec import encode_ack_init
from acktree.wire.control_records import ENTRY, AckInit
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import emitted_value, root_id
from acktree.wire.state_records import SlotKey, SlotState, encode_slot_state
from security.secure_broker import PASSWORD, WAIT_S, SecureBroker, until

TEXT = """
name = "seen"
[spouts.lines]
topics = ["seen.lines"]
emits = ["seen.words"]
[bolts.count]
reads = ["seen.words"]
"""
TOPOLOGY = parse_topology(TEXT)
USERS = (f"seen-{number}" for number in itertools.count())
DEAD_LETTER = ["dead-letter", "show", "--topology", "seen", "0/0"]
REPLAY = ["dead-letter", "replay", "--topology", "seen", "0/0"]
RANGE = ["replay", "--topology", "seen", "seen.lines", "0", "0", "1"]
LOOKS = {
    "describe": ["describe", "--topology", "seen"],
    "pending": ["pending", "list", "--topology", "seen"],
    "trace": ["trace", "--topology", "seen", "seen.lines", "0", "0"],
    "dead-letters": ["dead-letter", "list", "--topology", "seen"],
    "dead-letter": DEAD_LETTER,
    "plan": RANGE,
}
OPERATOR = pytest.param("operator", marks=pytest.mark.slow)
STATE = "seen.state-lines"
CONTROL = {
    "seen.ack",
    "seen.ack-init",
    "seen.spout-0",
    "seen.topology",
    "seen.dead-letter",
    "seen.stats",
    STATE,
}
DATA = {"seen.lines", "seen.words"}
WRITES = {
    (Role.ACKER, None): {"seen.spout-0", "seen.stats"},
    (Role.BOLT, "count"): {"seen.ack", "seen.stats"},
    (Role.SPARK, "lines"): CONTROL - {"seen.topology"} | {"seen.words"},
    (Role.OPERATOR, None): {"seen.topology", "seen.spout-0"},
    (Role.UI, None): set(),
}


@dataclass
class User:
    """Somebody with some rights, and the verbs of the command line."""

    secure: SecureBroker
    folder: Path
    properties: dict[str, str]

    def acktree(self, *arguments: str) -> Result:
        path = self.folder / "client.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.properties.items()))
        place = ["-b", self.secure.scram, "--command-config", str(path)]
        done = CliRunner().invoke(main, [*arguments, *place], env={"TERM": "dumb"})
        assert PASSWORD not in done.output
        return done

    def is_refused(self, *arguments: str) -> str:
        """Check that a command ends with one sentence about rights, and return it."""
        done = self.acktree(*arguments)
        assert done.exit_code == 2, done.output
        (sentence,) = [line for line in done.output.splitlines() if line.startswith("error: ")]
        assert "authorization failed" in sentence.lower()
        assert "acktree acl plan --role" in sentence
        return sentence


@pytest.fixture(scope="module", autouse=True)
def topology(secure: SecureBroker) -> None:
    """The published topology with one record that waits for its bolt, a dead letter and a report."""
    secure.admin.create_topics([NewTopic("seen.lines", 1)])["seen.lines"].result(WAIT_S)
    apply_topology(secure.plain, TOPOLOGY, {})
    history = read_history(secure.plain, "seen", {})
    version, edge = history.latest.version, EdgeSource().one()
    root = root_id(history.latest.slots[0].slot, 16, 0)
    value = emitted_value(edge, history.readers(version, "seen.words").hashes)
    init = np.array([(root, value)], ENTRY)
    origin = [("acktree-origin", b"seen.lines/0/1")]
    report = Report("bolt", "count", "count@here:1", 1, {"executed": 1})
    producer = Producer({"bootstrap.servers": secure.plain, "log_level": 0})
    for _ in range(2):
        producer.produce("seen.lines", b"line")
    header = encode_header(version, [Anchor(version, root, edge)])
    producer.produce("seen.words", b"word", headers=[(HEADER, header)])
    producer.produce("seen.ack-init", encode_ack_init(AckInit(0, version, init)), partition=0)
    producer.produce("seen.dead-letter", b"line", headers=origin)
    slot, state = history.latest.slots[0], SlotState(0, 1, 1, BitMap64().serialize())
    key = SlotKey(slot.topic, slot.partition, slot.topic_id).encode()
    producer.produce(STATE, encode_slot_state(state), key, 0)
    producer.produce("seen.stats", report.encode())
    assert producer.flush(WAIT_S) == 0


def user_with(secure: SecureBroker, folder: Path, allowed: list[Right]) -> User:
    name = next(USERS)
    secure.add_user(name)
    secure.allow(name, allowed)
    return User(secure, folder, secure.properties(name))


@pytest.fixture
def looker(secure: SecureBroker, tmp_path: Path) -> User:
    return user_with(secure, tmp_path, list(rights(TOPOLOGY, Role.UI, None)))


@pytest.fixture
def operator(secure: SecureBroker, tmp_path: Path) -> User:
    return user_with(secure, tmp_path, list(rights(TOPOLOGY, Role.OPERATOR, None)))


def report_pending(secure: SecureBroker) -> None:
    """Report the record as pending, by a clock that is ahead: the report counts while a test takes."""
    place = "seen.lines.0"
    values = {f"frontier.{place}": 0, f"next.{place}": 1, f"pending.{place}": 1, f"held_s.{place}": 5.0}
    report = Report("spout", "lines", "lines-0", world.wall_ms() + 600_000, values)
    producer = Producer({"bootstrap.servers": secure.plain, "log_level": 0})
    producer.produce("seen.stats", report.encode())
    assert producer.flush(WAIT_S) == 0


def test_a_viewer_sees_that_nothing_reports_in_a_topology_without_processes(looker: User):
    said = json.loads(looker.acktree(*LOOKS["describe"], "--format", "json").stdout)
    assert {each["kind"] for each in said["stuck"]} >= {"no-bolt", "no-spout", "no-acker"}
    assert (said["totals"]["pending"], len(said["unreported"])) == (None, 2)
    assert looker.acktree(*LOOKS["pending"]).exit_code == 3


@pytest.mark.parametrize("role", ["looker", OPERATOR])
@pytest.mark.promise("the status page, Prometheus")
def test_a_viewer_can_read_everything(role: str, request: pytest.FixtureRequest, secure: SecureBroker):
    user: User = request.getfixturevalue(role)
    results = {name: user.acktree(*command, "--format", "json") for name, command in LOOKS.items()}
    codes = {done.exit_code for done in results.values()}
    assert codes <= {0, 1, 3}, [done.output for done in results.values()]
    said = {name: json.loads(done.stdout) for name, done in results.items()}
    assert "no-bolt" in {each["kind"] for each in said["describe"]["stuck"]}
    report_pending(secure)
    reported = json.loads(user.acktree(*LOOKS["pending"], "--format", "json").stdout)
    assert (reported["total"], [each["offset"] for each in reported["pending"]]) == (1, [0])
    (emission,) = said["trace"]["emissions"]
    assert emission["tuples"][0]["readers"][0]["state"] == "open"
    assert [each["source_offset"] for each in said["dead-letters"]["dead_letters"]] == [1]
    assert said["dead-letter"]["value"] == "line"
    assert said["plan"]["commands"][0]["offsets"] == 1


def test_an_operator_replays_and_publishes(operator: User, tmp_path: Path):
    assert operator.acktree(*RANGE, "--execute").exit_code == 0
    assert operator.acktree(*REPLAY, "--execute").exit_code == 0
    file = tmp_path / "topology.toml"
    file.write_text(TEXT)
    for command in (["topology", "apply"], ["topology", "diff"], ["topics", "create"]):
        done = operator.acktree(*command, str(file))
        assert done.exit_code == 0, done.output


def missing_from(role: Role) -> pytest.MarkDecorator:
    """Parametrize over the rights with which a role looks."""
    looks = [right for right in rights(TOPOLOGY, role, None) if right.operation in ("Read", "Describe")]
    looks = [right for right in looks if right.name != STATE]  # without it a trace says what is not known
    return pytest.mark.parametrize("missing", looks, ids=lambda right: f"{right.operation}-{right.name}")


def but_the_first_slow(commands: dict[str, list[str]]) -> list[Any]:
    """Return the parameters of a test, of which all but the first are variations."""
    return [
        pytest.param(command, id=name, marks=[pytest.mark.slow] if number else [])
        for number, (name, command) in enumerate(commands.items())
    ]


@missing_from(Role.UI)
def test_a_missing_right_is_reported_instead_of_showing_less(
    secure: SecureBroker, tmp_path: Path, missing: Right
):
    kept = [right for right in rights(TOPOLOGY, Role.UI, None) if right != missing]
    user = user_with(secure, tmp_path, kept)
    is_traced = missing.name not in ("seen.stats", "seen.acker", *DATA)
    assert missing.name in user.is_refused(*LOOKS["trace" if is_traced else "describe"])


@pytest.mark.parametrize("kept", ["", pytest.param("Describe", marks=pytest.mark.slow)])
@pytest.mark.parametrize("topic", ["seen.lines", pytest.param("seen.words", marks=pytest.mark.slow)])
def test_without_a_data_topic_the_trace_says_what_it_lacks(
    secure: SecureBroker, tmp_path: Path, topic: str, kept: str
):
    taken = Right("topic", topic, "Read")
    allowed = [right for right in rights(TOPOLOGY, Role.UI, None) if right != taken]
    if kept:
        allowed.append(Right("topic", topic, kept))
    user = user_with(secure, tmp_path, allowed)
    done = user.acktree(*LOOKS["trace"], "--payloads", "--format", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (emission,) = found["emissions"]
    if topic == "seen.words":
        assert emission["tuples"] == []
        assert "retention" not in emission["text"]
        (sentence,) = [note for note in found["notes"] if note.startswith("the tuples on seen.words")]
        assert found["payload"]["value"]["text"] == "line"
    else:
        assert emission["tuples"][0]["payload"]["value"]["text"] == "word"
        assert found["payload"]["value"] is None
        sentence = found["payload"]["missing"] if kept else found["notes"][0]
        assert (found["state"], found["log_end"]) == (("pending", 2) if kept else ("not known", None))
    assert "authorization failed" in sentence.lower()
    assert topic in sentence
    settings = PageSettings(user.secure.scram, "seen", user.properties)
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        page = client.get("/trace?topic=seen.lines&partition=0&offset=0")
    assert page.status_code == 200
    assert "authorization failed" in page.text.lower()


@pytest.mark.parametrize("kept", ["", "Describe"])
def test_without_a_spouts_state_the_trace_says_that_it_is_unknown_what_is_done(
    secure: SecureBroker, tmp_path: Path, kept: str
):
    taken = Right("topic", STATE, "Read")
    allowed = [right for right in rights(TOPOLOGY, Role.UI, None) if right != taken]
    if kept:
        allowed.append(Right("topic", STATE, kept))
    done = user_with(secure, tmp_path, allowed).acktree(*LOOKS["trace"], "--format", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["state"], len(found["emissions"])) == ("not known", 1)
    (note,) = [note for note in found["notes"] if note.startswith("cannot tell whether the record is done")]
    assert "authorization failed" in note.lower()
    assert STATE in note


FORBIDDEN_TO_UI = {
    "replay": [*RANGE, "--execute"],
    "replay-dead-letter": [*REPLAY, "--execute"],
    "apply": ["topology", "apply", "grown.toml"],
    "create": ["topics", "create", "grown.toml"],
    "acl": ["acl", "plan", "--role", "ui", "--principal", "User:me", "--topology", "seen", "--execute"],
}


@pytest.mark.parametrize("command", but_the_first_slow(FORBIDDEN_TO_UI))
def test_a_viewer_can_change_nothing_and_gets_an_error(
    looker: User, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("grown.toml").write_text(TEXT + 'emits = ["seen.counts"]\n')
    before = read_history(looker.secure.plain, "seen", {}).latest
    looker.is_refused(*command)
    assert read_history(looker.secure.plain, "seen", {}).latest == before


def test_an_operator_cannot_grant_rights(operator: User):
    operator.is_refused(*FORBIDDEN_TO_UI["acl"])


@pytest.mark.parametrize(
    ("role", "component"),
    [pytest.param(*each, marks=[] if each[0] is Role.SPARK else pytest.mark.slow) for each in WRITES],
    ids=str,
)
def test_no_role_can_write_to_topics_that_are_not_listed(
    secure: SecureBroker, tmp_path: Path, role: Role, component: str | None
):
    user = user_with(secure, tmp_path, list(rights(TOPOLOGY, role, component)))
    taken, refused = set(), {}
    producer = Producer({**user.properties, "bootstrap.servers": secure.scram, "log_level": 0})
    for topic in CONTROL | DATA:

        def on_delivery(error: KafkaError | None, _message: object, topic: str = topic) -> None:
            taken.add(topic) if error is None else refused.update({topic: error.code()})

        producer.produce(topic, b"forged", b"key", on_delivery=on_delivery)
    assert producer.flush(WAIT_S) == 0
    assert taken == WRITES[role, component]
    assert set(refused.values()) == {KafkaError.TOPIC_AUTHORIZATION_FAILED}


@pytest.mark.parametrize(
    ("role", "group"),
    [
        ("looker", "seen.acker"),
        pytest.param("looker", "seen.lines", marks=pytest.mark.slow),
        pytest.param("looker", "seen.count", marks=pytest.mark.slow),
        pytest.param("operator", "seen.acker", marks=pytest.mark.slow),
        pytest.param("operator", "seen.count", marks=pytest.mark.slow),
    ],
)
def test_a_viewer_can_join_no_group(role: str, group: str, request: pytest.FixtureRequest):
    user: User = request.getfixturevalue(role)
    settings = {**user.properties, "bootstrap.servers": user.secure.scram, "group.id": group, "log_level": 0}
    consumer = Consumer(settings)
    consumer.subscribe(["seen.words"])
    codes: list[int] = []

    def is_refused() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is not None:
            codes.append(message.error().code())
        return bool(codes)

    until(is_refused, "the refusal")
    consumer.close()
    assert codes == [KafkaError.GROUP_AUTHORIZATION_FAILED]


def test_an_operator_may_rewind_a_spout_and_a_viewer_may_not(operator: User, looker: User):
    group = "seen.lines"
    committed = [TopicPartition("seen.lines", 0, 2)]
    owner = Consumer({"bootstrap.servers": operator.secure.plain, "group.id": group, "log_level": 0})
    owner.commit(offsets=committed, asynchronous=False)
    rewind = ("rewind", "seen", "--spout", "lines", "--to", "earliest", "--execute")
    looker.is_refused(*rewind)
    assert owner.committed(committed, timeout=WAIT_S)[0].offset == 2
    done = operator.acktree(*rewind)
    assert done.exit_code == 0, done.output
    assert owner.committed(committed, timeout=WAIT_S)[0].offset == 0
    owner.close()


@pytest.mark.parametrize("role", ["looker", OPERATOR])
def test_a_viewer_can_delete_no_topic(role: str, request: pytest.FixtureRequest):
    user: User = request.getfixturevalue(role)
    admin = AdminClient({**user.properties, "bootstrap.servers": user.secure.scram, "log_level": 0})
    for topic, future in admin.delete_topics(sorted(CONTROL | DATA)).items():
        with pytest.raises(KafkaException) as caught:
            future.result(WAIT_S)
        assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, topic


@pytest.fixture
def page(looker: User) -> Iterator[TestClient]:
    settings = PageSettings(looker.secure.scram, "seen", looker.properties, allow_actions=True)
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        until(lambda: client.get("/status.json").json().get("error") is None, "a first look")
        yield client


def test_the_page_works_with_the_rights_of_ui_and_reports_missing_ones(page: TestClient):
    for path in ("/", "/pending", "/trace?topic=seen.lines&partition=0&offset=0", "/dead-letters/0/0"):
        assert page.get(path).status_code == 200, path
    planned = page.get("/replay?topic=seen.lines&partition=0&first=0&following=1")
    assert planned.status_code == 200
    fields = dict(part.split('" value="') for part in _hidden(planned.text))
    refused = page.post("/replay", data=fields)
    assert refused.status_code == 403
    assert "topic seen.spout-0: " in refused.text
    assert "authorization failed" in refused.text
    assert "acktree acl plan --role" in refused.text


def _hidden(text: str) -> list[str]:
    """Return `NAME" value="VALUE` of each hidden field of a form."""
    return [part.split('name="')[1].split('">')[0] for part in text.split("<input")[1:] if 'hidden"' in part]
