"""Dead letters replayed in bulk, from the page and the command line: planned, confirmed, and done once."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from starlette.testclient import TestClient

from acktree.console import dead_letter_edit
from acktree.console.dead_letter_edit import carry_out, correct, read_open_dead_letter
from acktree.console.main import main
from acktree.console.page import actions
from acktree.console.page.app import StatusPage
from acktree.console.page.frame import PageSettings
from acktree.console.view.cluster import Cluster
from acktree.schemas.codec import decode_result_record
from acktree.schemas.control_records import ReplayCommand, Span
from acktree.schemas.errors import AcktreeError, BrokerUnreachable
from acktree.schemas.publish import apply_topology
from acktree.schemas.registry import read_history
from acktree.schemas.topology import parse_topology
from unreadable import write_with_bad_name

WAIT_S = 30
CITY, SLOW = "no such city", "too slow\r\n\x1b[2J"
LETTERS = [(0, CITY), (5, CITY), (6, CITY), (6, SLOW), (99, CITY), (7, SLOW)]
"""Source offset and reason of each dead letter; offset 0 is removed, 99 was never there."""


@dataclass
class GivenUp:
    """A topology with dead letters and the verbs of its operator."""

    bootstrap: str
    name: str

    @property
    def source(self) -> str:
        return f"{self.name}.lines"

    def create(self) -> None:
        self.publish(self.source)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_records([TopicPartition(self.source, 0, 1)]).values():
            future.result(WAIT_S)
        for offset, reason in LETTERS:
            self.give_up(offset, reason)

    def publish(self, topic: str, partitions: int = 1) -> None:
        """Publish the topology with one more source topic, of ten records."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions)])[topic].result(WAIT_S)
        topics = json.dumps(list(dict.fromkeys((self.source, topic))))
        text = f'name = "{self.name}"\n[spouts.lines]\ntopics = {topics}\nemits = ["{self.name}.w"]\n'
        text += f"tasks = {partitions}\n"
        text += f'[bolts.count]\nreads = ["{self.name}.w"]\n'
        apply_topology(self.bootstrap, parse_topology(text), {})
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(10 * partitions):
            producer.produce(topic, b"line", partition=number % partitions)
        assert producer.flush(WAIT_S) == 0

    def give_up(self, offset: int, reason: str, partition: int = 0) -> None:
        headers = {
            "origin": f"{self.source}/{partition}/{offset}",
            "attempts": "3",
            "cause": "FAILED",
            "task": "count@vm:1",
            "reason": reason,
        }
        producer = Producer({"bootstrap.servers": self.bootstrap})
        named = [(f"acktree-{name}", text.encode()) for name, text in headers.items()]
        producer.produce(f"{self.name}.dead-letter", b"line", headers=named)
        assert producer.flush(WAIT_S) == 0

    def commands(self) -> list[tuple[Span, ...]]:
        """Return the spans of every replay command that was written."""
        latest = read_history(self.bootstrap, self.name, {}).latest
        place = TopicPartition(latest.result_topic(latest.task_of(latest.slots[0])), 0, 0)
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        _, end = reader.get_watermark_offsets(place, WAIT_S)
        reader.assign([place])
        found = [decode_result_record(each.value()) for each in (reader.consume(end, WAIT_S) if end else [])]
        reader.close()
        assert len(found) == end
        return [each.spans for each in found if isinstance(each, ReplayCommand)]

    def acktree(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, [*arguments, "--topology", self.name, "-b", self.bootstrap])


@pytest.fixture
def topology(bootstrap: str, unique: str) -> GivenUp:
    made = GivenUp(bootstrap, unique)
    made.create()
    return made


@pytest.fixture
def page(topology: GivenUp) -> Iterator[TestClient]:
    settings = PageSettings(topology.bootstrap, topology.name, {}, allow_actions=True)
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        yield client


def form_of(answer: httpx2.Response) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', answer.text))


def plan_by_link(page: TestClient, listing: str) -> httpx2.Response:
    """Follow the page's own link from a list of dead letters to the plan of their replay."""
    (link,) = re.findall(r'href="(/replay\?[^"]*)"', page.get(listing).text)
    return page.get(link.replace("&amp;", "&"))


def test_all_that_match_are_replayed_once_and_the_rest_is_refused_by_name(
    topology: GivenUp, page: TestClient
):
    planned = plan_by_link(page, "/dead-letters?contains=CITY")
    assert "2 dead letters of 1 reason will be replayed: 2 source records" in planned.text
    assert f"replay 2 offset(s) of {topology.source}/0: 5 to 6" in planned.text
    assert "filter: contains &#39;CITY&#39;" in planned.text
    refusals = [
        f"refused: 1 dead letter, 0/4: there is no such source record: {topology.source}/0 ends before 10",
        f"refused: 1 dead letter, 0/0: its source record is gone: {topology.source}/0 begins at 1",
    ]
    assert [each for each in refusals if each not in planned.text] == []
    assert topology.commands() == []
    done = page.post("/replay", data=form_of(planned))
    assert (done.status_code, "written to" in done.text) == (200, True)
    assert [each for each in refusals if each not in done.text] == []
    assert topology.commands() == [(Span(5, 7),)]


def test_a_reason_with_line_ends_and_control_characters_is_a_filter(topology: GivenUp, page: TestClient):
    (link,) = re.findall(r'href="(/dead-letters\?reason=too[^"]*)"', page.get("/dead-letters").text)
    planned = plan_by_link(page, link.replace("&amp;", "&"))
    assert "2 dead letters of 1 reason" in planned.text
    page.post("/replay", data=form_of(planned))
    assert topology.commands() == [(Span(6, 8),)]


def test_a_form_that_is_sent_again_repeats_the_answer_and_not_the_replay(topology: GivenUp, page: TestClient):
    form = form_of(plan_by_link(page, "/dead-letters"))
    with ThreadPoolExecutor(4) as clicks:
        answers = list(clicks.map(lambda _: page.post("/replay", data=form), range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert sum("carried out already" in answer.text for answer in answers) == 3
    assert all("written to" in answer.text for answer in answers)
    assert topology.commands() == [(Span(5, 8),)]


@pytest.mark.parametrize(
    "forge",
    [
        lambda form: {**form, "proof": "forged"},
        lambda form: {"ticket": form["ticket"]},
        lambda form: {**form, "ticket": "forged"},
    ],
)
def test_a_forged_form_replays_nothing(
    topology: GivenUp, page: TestClient, forge: Callable[[dict[str, str]], dict[str, str]]
):
    form = form_of(plan_by_link(page, "/dead-letters"))
    assert page.post("/replay", data=forge(form)).status_code in (400, 403)
    foreign = {"origin": "http://evil.example"}
    assert page.post("/replay", data=form, headers=foreign).status_code == 403
    assert page.get("/replay", params=form).status_code == 200
    page.cookies.clear()
    assert page.post("/replay", data=form).status_code == 403
    assert topology.commands() == []


def test_what_is_replayed_is_what_was_shown_whatever_comes_later(topology: GivenUp, page: TestClient):
    form = form_of(plan_by_link(page, "/dead-letters?contains=city"))
    topology.give_up(8, CITY)
    other = {"topic": topology.source, "partition": "0", "first": "1", "following": "9", "matching": "1"}
    assert "written to" in page.post("/replay", data={**form, **other}).text
    assert topology.commands() == [(Span(5, 7),)]


def test_a_frontier_that_moves_on_does_not_change_a_plan(topology: GivenUp, page: TestClient):
    form = form_of(plan_by_link(page, "/dead-letters"))
    committer = Consumer({"bootstrap.servers": topology.bootstrap, "group.id": f"{topology.name}.lines"})
    committer.commit(offsets=[TopicPartition(topology.source, 0, 9)], asynchronous=False)
    committer.close()
    assert "written to" in page.post("/replay", data=form).text
    assert topology.commands() == [(Span(5, 8),)]


def test_a_plan_that_would_do_something_else_now_is_shown_again(topology: GivenUp, page: TestClient):
    form = form_of(plan_by_link(page, "/dead-letters"))
    admin = AdminClient({"bootstrap.servers": topology.bootstrap})
    for future in admin.delete_records([TopicPartition(topology.source, 0, 6)]).values():
        future.result(WAIT_S)
    again = page.post("/replay", data=form)
    assert "The plan has changed" in again.text
    assert "refused: 2 dead letters, 0/1 0/0: its source record is gone" in again.text
    assert topology.commands() == []
    assert "written to" in page.post("/replay", data=form_of(again)).text
    assert topology.commands() == [(Span(6, 8),)]


def test_a_plan_is_made_for_the_version_that_is_published_now(topology: GivenUp, page: TestClient):
    assert page.get("/dead-letters").status_code == 200
    topology.publish(f"{topology.name}.more")
    asked = {"topic": f"{topology.name}.more", "partition": "0", "first": "1", "following": "2"}
    planned = page.get("/replay", params=asked)
    assert f"replay 1 offset(s) of {topology.name}.more/0: 1" in planned.text
    assert "written to" in page.post("/replay", data=form_of(planned)).text


def test_the_plan_says_that_only_the_newest_are_looked_at(
    topology: GivenUp, page: TestClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actions, "NEWEST", 1)
    planned = page.get("/replay?matching=1")
    assert "1 dead letter of 1 reason" in planned.text
    assert "only the newest 1 dead letters are looked at; there are older ones" in planned.text


def test_commands_that_the_broker_refuses_are_named_beside_those_that_are_written(
    bootstrap: str, unique: str
):
    topology = GivenUp(bootstrap, unique)
    topology.publish(topology.source, partitions=2)
    for partition in (0, 1):
        topology.give_up(3, CITY, partition)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    limit = ConfigEntry("max.message.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", f"{unique}.spout-1", incremental_configs=[limit])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)
    settings = PageSettings(bootstrap, unique, {}, allow_actions=True)
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        done = client.post("/replay", data=form_of(plan_by_link(client, "/dead-letters")))
    assert done.status_code == 200
    assert f"replay 1 offset(s) of {topology.source}/0: written to {unique}.spout-0" in done.text
    assert f"refused: replay 1 offset(s) of {topology.source}/1: the broker at" in done.text
    assert topology.commands() == [(Span(3, 4),)]


def test_a_replay_of_which_nothing_is_known_to_be_written_is_not_tried_again(
    topology: GivenUp, page: TestClient, monkeypatch: pytest.MonkeyPatch
):
    form = form_of(plan_by_link(page, "/dead-letters"))
    monkeypatch.setattr(actions, "write_commands", lambda *_: [BrokerUnreachable("not confirmed")])
    failed = page.post("/replay", data=form)
    assert (failed.status_code, "not confirmed" in failed.text) == (503, True)
    monkeypatch.undo()
    again = page.post("/replay", data=form)
    assert (again.status_code, "plan the replay again" in again.text) == (400, True)
    assert topology.commands() == []


@pytest.mark.parametrize(
    "bad",
    ["matching=1&reason=unknown", "matching=1&spout=none", "letters=0/x", f"letters={'9' * 5_000}"],
    ids=lambda bad: bad[:24],
)
def test_a_bad_question_for_a_plan_is_answered_with_a_sentence(topology: GivenUp, page: TestClient, bad: str):
    answer = page.get(f"/replay?{bad}")
    assert answer.status_code == 400
    assert len(answer.text) < 4_000 or "9" * 5_000 in answer.text
    assert '<div class="banner bad">' in answer.text


def test_the_command_line_filters_counts_and_replays_the_same(topology: GivenUp):
    listed = json.loads(
        topology.acktree("dead-letter", "list", "--contains", "CITY", "--format", "json").stdout
    )
    assert [each["source_offset"] for each in listed["dead_letters"]] == [99, 6, 5, 0]
    assert {each["spout"] for each in listed["dead_letters"]} == {"lines"}
    newest = topology.acktree("dead-letter", "list", "--contains", "city", "--limit", "1", "--format", "json")
    assert [each["source_offset"] for each in json.loads(newest.stdout)["dead_letters"]] == [99]
    table = topology.acktree("dead-letter", "list", "--by-reason").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["DEAD_LETTERS", "4", "2"]
    assert "\x1b" not in "".join(table)
    unknown = topology.acktree("dead-letter", "list", "--reason", "nothing")
    assert (unknown.exit_code, "has the reason 'nothing'" in unknown.stderr) == (2, True)
    planned = topology.acktree("dead-letter", "replay", "--reason", CITY)
    assert "2 dead letters of 1 reason will be replayed" in planned.stdout
    assert "refused: 1 dead letter, 0/0: its source record is gone" in planned.stdout
    assert topology.commands() == []
    done = json.loads(
        topology.acktree("dead-letter", "replay", "--task", "count", "--execute", "--format", "json").stdout
    )
    assert (done["executed"], done["dead_letters"], done["records"], done["reasons"]) == (True, 4, 3, 2)
    assert [each["dead_letters"] for each in done["refused"]] == [["0/4"], ["0/0"]]
    assert topology.commands() == [(Span(5, 8),)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("0/1", "0/0"), "its source record is gone"),
        (("0/1", "--reason", CITY), "or a filter"),
        (("\u00b2",), "is not OFFSET"),
        (("9" * 5_000,), "is not OFFSET"),
        (("--contains", "nothing"), "has no such dead letters"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_in_one_sentence(
    topology: GivenUp, arguments: tuple[str, ...], sentence: str
):
    done = topology.acktree("dead-letter", "replay", *arguments, "--execute")
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.output
    assert topology.commands() == []


# Corrected values.


def source_records(topology: GivenUp) -> list[Any]:
    """Return the records of the source partition, those of aborted transactions left out."""
    settings = {
        "bootstrap.servers": topology.bootstrap,
        "group.id": topology.name,
        "enable.partition.eof": True,
    }
    reader = Consumer(settings)
    reader.assign([TopicPartition(topology.source, 0, 1)])
    found = []
    while (record := reader.poll(WAIT_S)) is not None and record.error() is None:
        found.append(record)
    reader.close()
    return found


def edit(topology: GivenUp, value: bytes, *more: str, letter: str = "1") -> Any:
    arguments = ["dead-letter", "replay", letter, "--edit", "--value-file", "-", *more]
    return CliRunner().invoke(
        main, [*arguments, "--topology", topology.name, "-b", topology.bootstrap], input=value
    )


def test_a_corrected_value_is_a_new_record_and_its_dead_letter_is_closed(topology: GivenUp) -> None:
    before = len(source_records(topology))
    planned = edit(topology, b"right")
    assert planned.exit_code == 0, planned.output
    assert "nothing was changed" in planned.output
    assert len(source_records(topology)) == before
    done = edit(topology, b"right", "--execute", "--format", "json")
    assert done.exit_code == 0, done.output
    new = source_records(topology)[-1]
    place = f"{topology.source}/0/{new.offset()}"
    assert json.loads(done.output)["corrected_as"] == place
    assert (new.value(), new.headers()) == (
        b"right",
        [("acktree-corrects", f"{topology.source}/0/5".encode())],
    )
    listed = json.loads(topology.acktree("dead-letter", "list", "--format", "json").output)["dead_letters"]
    assert {each["offset"]: each["corrected_as"] for each in listed if each["corrected_as"]} == {1: place}
    assert len(listed) == len(LETTERS), "what closes a dead letter is none"
    assert f"corrected as     {place}" in topology.acktree("dead-letter", "show", "1").output
    assert f"corrected as {place}" in topology.acktree("trace", topology.source, "0", "5").output
    assert f"it corrects {topology.source}/0/5" in topology.acktree("trace", *place.rsplit("/", 2)).output


def test_a_dead_letter_is_corrected_once_and_not_replayed_afterwards(topology: GivenUp) -> None:
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(corrected_directly, topology, value) for value in (b"one", b"two")]
        outcomes = [run.result() for run in runs]
    corrections = [each for each in source_records(topology) if each.value() in (b"one", b"two")]
    assert len(corrections) == 1
    assert sorted(outcome == "done" for outcome in outcomes) == [False, True]
    again = edit(topology, b"three", "--execute")
    assert again.exit_code != 0
    assert (again.exit_code, "is closed" in again.output) == (2, True)
    replay = topology.acktree("dead-letter", "replay", "1", "--execute")
    assert (replay.exit_code, "it is closed" in replay.output) == (2, True)
    assert topology.commands() == []


def corrected_directly(topology: GivenUp, value: bytes) -> str:
    cluster = Cluster(topology.bootstrap, topology.name, {})
    try:
        letter, record = read_open_dead_letter(cluster, 0, 1)
        carry_out(cluster, correct(letter, record, value), {})
    except AcktreeError as error:
        return str(error)
    finally:
        cluster.close()
    return "done"


def test_whoever_dies_before_the_commit_leaves_the_dead_letter_open(
    topology: GivenUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any, **record: Any) -> None:
        if record["topic"].endswith(".dead-letter"):
            raise Killed
        return send(*_, **record)

    send = dead_letter_edit._send
    cluster = Cluster(topology.bootstrap, topology.name, {})
    letter, record = read_open_dead_letter(cluster, 0, 1)
    before = len(source_records(topology))
    with monkeypatch.context() as patch:
        patch.setattr(dead_letter_edit, "_send", die)
        with pytest.raises(Killed):
            carry_out(cluster, correct(letter, record, b"right"), {})
    assert len(source_records(topology)) == before
    carry_out(cluster, correct(letter, record, b"right"), {})
    cluster.close()
    assert [each.value() for each in source_records(topology)[before:]] == [b"right"]


def test_what_cannot_be_corrected_is_refused(topology: GivenUp) -> None:
    for value, letter, why in ((b"line", "1", "the value is unchanged"), (b"right", "77", "holds no record")):
        refused = edit(topology, value, "--execute", letter=letter)
        assert (refused.exit_code, why in refused.output) == (2, True), refused.output
    two = topology.acktree("dead-letter", "replay", "1", "2", "--edit")
    assert two.exit_code == 2


def test_dead_letters_are_listed_by_time_and_key(topology: GivenUp) -> None:
    def listed(*filters: str) -> list[int]:
        done = topology.acktree("dead-letter", "list", "--format", "json", *filters)
        assert done.exit_code == 0, done.output
        return [each["offset"] for each in json.loads(done.output)["dead_letters"]]

    assert sorted(listed("--since", "1h")) == list(range(len(LETTERS)))
    assert listed("--until", "1h") == []
    assert listed("--since", "2099-01-01") == []
    assert topology.acktree("dead-letter", "list", "--since", "soon").exit_code == 2
    unknown = topology.acktree("dead-letter", "list", "--key", "k")
    assert (unknown.exit_code, "has the key 'k'" in unknown.output) == (2, True)


# Records of others.


def test_a_record_whose_headers_cannot_be_read_hides_no_dead_letter(topology: GivenUp, page: TestClient):
    write_with_bad_name(topology.bootstrap, f"{topology.name}.dead-letter", b"foreign")
    listed = json.loads(topology.acktree("dead-letter", "list", "--format", "json").output)["dead_letters"]
    assert sorted(each["offset"] for each in listed) == list(range(len(LETTERS) + 1))
    (foreign,) = [each for each in listed if each["offset"] == len(LETTERS)]
    assert (foreign["topic"], foreign["value"]) == ("", "foreign")
    assert page.get("/dead-letters").status_code == 200
    assert page.get(f"/dead-letters/0/{len(LETTERS)}").status_code == 200
    assert topology.acktree("trace", topology.source, "0", "5").exit_code == 0
