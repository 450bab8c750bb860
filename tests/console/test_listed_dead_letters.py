"""Every dead letter is listed: by its filters, and whatever others have written beside it."""

import json
from typing import Any

import pytest

from acktree.console.page.serving.frame import PageSettings
from acktree.console.view import cluster as cluster_module
from acktree.core import world
from acktree.core.kafka.clients import make_producer
from acktree.wire.control_records import Span
from console.dead_letter_topology import (
    CITY,
    LETTERS,
    WAIT_S,
    DeadLetterTopology,
    edit,
)
from console.page_visitor import Visitor, visit
from unreadable_headers import write_with_bad_name

pytestmark = pytest.mark.simulated


def test_dead_letters_are_listed_by_time_and_key(topology: DeadLetterTopology) -> None:
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


@pytest.mark.real  # no simulated producer writes such headers
def test_a_record_whose_headers_cannot_be_read_hides_no_dead_letter(
    topology: DeadLetterTopology, page: Visitor
):
    write_with_bad_name(topology.bootstrap, f"{topology.name}.dead-letter", b"foreign")
    listed = json.loads(topology.acktree("dead-letter", "list", "--format", "json").output)["dead_letters"]
    assert sorted(each["offset"] for each in listed) == list(range(len(LETTERS) + 1))
    (foreign,) = [each for each in listed if each["offset"] == len(LETTERS)]
    assert (foreign["topic"], foreign["value"]) == ("", "foreign")
    assert page.get("/dead-letters").status_code == 200
    assert page.get(f"/dead-letters/0/{len(LETTERS)}").status_code == 200
    assert topology.acktree("trace", topology.source, "0", "5").exit_code == 0


def test_a_source_record_with_the_header_of_a_close_closes_nothing(topology: DeadLetterTopology):
    producer = make_producer({"bootstrap.servers": topology.bootstrap})
    copied = [("acktree-closes", b"0/1"), ("acktree-corrected-as", b"other/0/1")]
    origin = [("acktree-origin", f"{topology.source}/0/7".encode())]
    producer.produce(f"{topology.name}.dead-letter", b"copy", headers=[*copied, *origin])
    producer.produce(f"{topology.name}.dead-letter", b"m", headers=[*copied, ("acktree-spout", b"lines")])
    assert producer.flush(WAIT_S) == 0
    listed = json.loads(topology.acktree("dead-letter", "list", "--format", "json").output)["dead_letters"]
    assert sorted(each["offset"] for each in listed) == list(range(len(LETTERS) + 2))
    assert {each["corrected_as"] for each in listed} == {""}
    replayed = topology.acktree("dead-letter", "replay", "1", f"{len(LETTERS)}", "--execute")
    assert replayed.exit_code == 0, replayed.output
    assert topology.commands() == [(Span(5, 6), Span(7, 8))]
    assert "dead letter 0/6" in topology.acktree("trace", topology.source, "0", "7").output


def test_a_list_has_the_requested_length_whatever_lies_between_dead_letters(topology: DeadLetterTopology):
    for letter in ("1", "2", "3"):
        assert edit(topology, b"right", "--execute", letter=letter).exit_code == 0
    newest = topology.acktree("dead-letter", "list", "--limit", "3", "--format", "json")
    found = json.loads(newest.stdout)
    assert [each["offset"] for each in found["dead_letters"]] == [5, 4, 3]
    assert found["has_older"] is True
    assert "the newest 3 dead letters were read; there are older ones" in newest.stderr
    whole = topology.acktree("dead-letter", "list", "--format", "json")
    assert (json.loads(whole.stdout)["has_older"], whole.stderr) == (False, "")


def test_an_open_transaction_hides_no_dead_letter_silently(
    topology: DeadLetterTopology, monkeypatch: pytest.MonkeyPatch
):
    topic = f"{topology.name}.dead-letter"
    dead = make_producer({"bootstrap.servers": topology.bootstrap, "transactional.id": topology.name})
    dead.init_transactions(WAIT_S)
    dead.begin_transaction()
    dead.produce(topic, b"never committed")
    dead.flush(WAIT_S)
    topology.give_up(8, CITY)
    monkeypatch.setattr(cluster_module, "BROKER_TIMEOUT_S", 1.0)
    for arguments in (("list",), ("show", "1"), ("replay", "1"), ("replay", "--all")):
        refused = topology.acktree("dead-letter", *arguments)
        assert (refused.exit_code, "an open transaction hides" in refused.output) == (2, True), refused.output
    monkeypatch.undo()
    results: list[Any] = []
    listing = world.start_thread(
        lambda: results.append(topology.acktree("dead-letter", "list", "--format", "json")), "listing"
    )
    dead.abort_transaction(WAIT_S)
    listing.join(WAIT_S)
    found = json.loads(results[0].stdout)["dead_letters"]
    assert len(found) == len(LETTERS) + 1


def test_a_long_header_of_another_tool_is_cut(topology: DeadLetterTopology, page: Visitor):
    producer = make_producer({"bootstrap.servers": topology.bootstrap})
    many = [(f"h{number}", b"x") for number in range(5_000)]
    huge = [("acktree-reason", b"z" * 500_000), ("acktree-task", b"\xff<b>")]
    producer.produce(f"{topology.name}.dead-letter", b"v" * 300_000, headers=[*many, *huge])
    assert producer.flush(WAIT_S) == 0
    for path in ("/dead-letters", f"/dead-letters/0/{len(LETTERS)}", "/dead-letters.json"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < 300_000, path
        assert b"<b>" not in answer.content or path.endswith("json")


def test_a_page_without_payloads_does_not_reveal_keys(topology: DeadLetterTopology):
    producer = make_producer({"bootstrap.servers": topology.bootstrap})
    origin = [("acktree-origin", f"{topology.source}/0/7".encode())]
    producer.produce(f"{topology.name}.dead-letter", b"v", b"canary", headers=origin)
    assert producer.flush(WAIT_S) == 0
    settings = PageSettings(topology.bootstrap, topology.name, {}, allow_actions=True, payloads=False)
    with visit(settings) as client:
        for path in ("/dead-letters?key=", "/dead-letters.json?key=", "/replay?matching=1&key="):
            answers = [client.get(f"{path}{key}") for key in ("canary", "none")]
            assert [answer.status_code for answer in answers] == [400, 400], path
            assert answers[0].text == answers[1].text.replace('value="none"', 'value="canary"'), path
            assert "served with --no-payloads" in answers[0].text
        assert "canary" not in client.get("/dead-letters.json").text
