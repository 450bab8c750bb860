"""Dead letters replayed in bulk, from the page and the command line: planned, confirmed, and done once."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from acktree.console.page.routes import actions
from acktree.console.page.serving.frame import PageSettings
from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import make_admin, make_consumer
from acktree.wire.control_records import Span
from console.dead_letter_topology import CITY, WAIT_S, DeadLetterTopology
from console.page_visitor import Visitor, visit

pytestmark = pytest.mark.simulated


def form_of(answer: httpx2.Response) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', answer.text))


def plan_by_link(page: Visitor, listing: str) -> httpx2.Response:
    """Follow the page's own link from a list of dead letters to the plan of their replay."""
    (link,) = re.findall(r'href="(/replay\?[^"]*)"', page.get(listing).text)
    return page.get(link.replace("&amp;", "&"))


def test_all_matches_are_replayed_once_and_the_rest_are_refused_by_name(
    topology: DeadLetterTopology, page: Visitor
):
    planned = plan_by_link(page, "/dead-letters?contains=CITY")
    assert "2 dead letters of 1 reason will be replayed: 2 source records" in planned.text
    assert f"replay 2 offset(s) of {topology.source}/0: 5 to 6" in planned.text
    assert "filter: contains &#39;CITY&#39;" in planned.text
    refusals = [
        f"refused: 1 dead letter, 0/4: its source record does not exist: {topology.source}/0 ends before 10",
        f"refused: 1 dead letter, 0/0: its source record is gone: {topology.source}/0 begins at 1",
    ]
    assert [each for each in refusals if each not in planned.text] == []
    assert topology.commands() == []
    done = page.post("/replay", data=form_of(planned))
    assert (done.status_code, "written to" in done.text) == (200, True)
    assert [each for each in refusals if each not in done.text] == []
    assert topology.commands() == [(Span(5, 7),)]


def test_a_reason_with_line_ends_and_control_characters_is_a_filter(
    topology: DeadLetterTopology, page: Visitor
):
    (link,) = re.findall(r'href="(/dead-letters\?reason=too[^"]*)"', page.get("/dead-letters").text)
    planned = plan_by_link(page, link.replace("&amp;", "&"))
    assert "2 dead letters of 1 reason" in planned.text
    page.post("/replay", data=form_of(planned))
    assert topology.commands() == [(Span(6, 8),)]


@pytest.mark.real
def test_a_form_sent_again_repeats_the_answer_and_not_the_replay(topology: DeadLetterTopology, page: Visitor):
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
    topology: DeadLetterTopology, page: Visitor, forge: Callable[[dict[str, str]], dict[str, str]]
):
    form = form_of(plan_by_link(page, "/dead-letters"))
    assert page.post("/replay", data=forge(form)).status_code in (400, 403)
    foreign = {"origin": "http://evil.example"}
    assert page.post("/replay", data=form, headers=foreign).status_code == 403
    assert page.get("/replay", params=form).status_code == 200
    page.cookies.clear()
    assert page.post("/replay", data=form).status_code == 403
    assert topology.commands() == []


def test_a_replay_covers_exactly_what_was_shown_whatever_arrives_later(
    topology: DeadLetterTopology, page: Visitor
):
    form = form_of(plan_by_link(page, "/dead-letters?contains=city"))
    topology.give_up(8, CITY)
    other = {"topic": topology.source, "partition": "0", "first": "1", "following": "9", "matching": "1"}
    assert "written to" in page.post("/replay", data={**form, **other}).text
    assert topology.commands() == [(Span(5, 7),)]


def test_a_frontier_that_moves_on_does_not_change_a_plan(topology: DeadLetterTopology, page: Visitor):
    form = form_of(plan_by_link(page, "/dead-letters"))
    committer = make_consumer({"bootstrap.servers": topology.bootstrap, "group.id": f"{topology.name}.lines"})
    committer.commit(offsets=[TopicPartition(topology.source, 0, 9)], asynchronous=False)
    committer.close()
    assert "written to" in page.post("/replay", data=form).text
    assert topology.commands() == [(Span(5, 8),)]


def test_a_plan_whose_effect_has_changed_is_shown_again(topology: DeadLetterTopology, page: Visitor):
    form = form_of(plan_by_link(page, "/dead-letters"))
    admin = make_admin(topology.bootstrap, {})
    for future in admin.delete_records([TopicPartition(topology.source, 0, 6)]).values():
        world.wait_for(future, WAIT_S)
    again = page.post("/replay", data=form)
    assert "The plan has changed" in again.text
    assert "refused: 2 dead letters, 0/1 0/0: its source record is gone" in again.text
    assert topology.commands() == []
    assert "written to" in page.post("/replay", data=form_of(again)).text
    assert topology.commands() == [(Span(6, 8),)]


def test_a_plan_is_made_for_the_newest_version(topology: DeadLetterTopology, page: Visitor):
    assert page.get("/dead-letters").status_code == 200
    topology.publish(f"{topology.name}.more")
    asked = {"topic": f"{topology.name}.more", "partition": "0", "first": "1", "following": "2"}
    planned = page.get("/replay", params=asked)
    assert f"replay 1 offset(s) of {topology.name}.more/0: 1" in planned.text
    assert "written to" in page.post("/replay", data=form_of(planned)).text


def test_the_plan_says_that_only_the_newest_are_considered(
    topology: DeadLetterTopology, page: Visitor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(actions, "NEWEST", 1)
    planned = page.get("/replay?matching=1")
    assert "1 dead letter of 1 reason" in planned.text
    assert "only the newest 1 dead letters are considered; there are older ones" in planned.text


def test_commands_that_the_broker_refuses_are_named_beside_the_written_ones(kafka: str, unique: str):
    topology = DeadLetterTopology(kafka, unique)
    topology.publish(topology.source, partitions=2)
    for partition in (0, 1):
        topology.give_up(3, CITY, partition)
    admin = make_admin(kafka, {})
    limit = ConfigEntry("max.message.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", f"{unique}.spout-1", incremental_configs=[limit])
    for future in admin.incremental_alter_configs([resource]).values():
        world.wait_for(future, WAIT_S)
    with visit(PageSettings(kafka, unique, {}, allow_actions=True)) as client:
        done = client.post("/replay", data=form_of(plan_by_link(client, "/dead-letters")))
    assert done.status_code == 200
    assert f"replay 1 offset(s) of {topology.source}/0: written to {unique}.spout-0" in done.text
    assert f"refused: replay 1 offset(s) of {topology.source}/1: the broker at" in done.text
    assert topology.commands() == [(Span(3, 4),)]


def test_a_replay_whose_outcome_is_unknown_is_not_retried(
    topology: DeadLetterTopology, page: Visitor, monkeypatch: pytest.MonkeyPatch
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
def test_a_bad_request_for_a_plan_is_answered_with_a_sentence(
    topology: DeadLetterTopology, page: Visitor, bad: str
):
    answer = page.get(f"/replay?{bad}")
    assert answer.status_code == 400
    assert len(answer.text) < 4_000 or "9" * 5_000 in answer.text
    assert '<div class="banner bad">' in answer.text


def test_the_command_line_filters_counts_and_replays_the_same(topology: DeadLetterTopology):
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
def test_an_impossible_replay_is_refused_in_one_sentence(
    topology: DeadLetterTopology, arguments: tuple[str, ...], sentence: str
):
    done = topology.acktree("dead-letter", "replay", *arguments, "--execute")
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.output
    assert topology.commands() == []
