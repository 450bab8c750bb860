"""Which dead letters a filter matches, and what of them a replay can take: pure."""

from dataclasses import replace

import pytest

from acktree.console.dead_letter_replay import plan_dead_letters
from acktree.console.page.routes.dead_letter_pages import query
from acktree.console.replay import PartitionState
from acktree.console.view.records.dead_letter_filter import (
    DeadLetterFilter,
    Selection,
    UnknownFilter,
    reason_of,
    select,
)
from acktree.console.view.records.dead_letters import DeadLetter, dead_letter_of, without_content
from acktree.core.topology.registry import Published, Slot
from acktree.wire.control_records import Span

FIRST = DeadLetter(
    partition=0, offset=0, time_ms=1, topic="a", source_partition=0, source_offset=20, attempts=3,
    cause="FAILED", task="count@vm:1-a", reason="no city 'X'", key=None, value=None, value_bytes=0,
    headers={}, spout="in",
)  # fmt: skip
SLOW = replace(FIRST, offset=1, cause="TIMED_OUT", task="", reason="", source_offset=21)
OTHER = replace(FIRST, offset=2, task="sum@vm:2-b", reason="no city 'Y'", spout="late", source_offset=22)
FOREIGN = replace(
    FIRST, offset=3, topic="", source_partition=-1, source_offset=-1, cause="", task="", reason="", spout=""
)
ALL = (FIRST, SLOW, OTHER, FOREIGN)
SPOUTS = ("in", "late", "idle")
GONE = "its source record is gone: a/0 begins at 10; --edit writes its value again"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, (0, 1, 2, 3)),
        ({"reason": "no city 'X'"}, (0,)),
        ({"contains": "NO CITY"}, (0, 2)),
        ({"contains": "timed"}, (1,)),
        ({"reason": "timed out"}, (1,)),
        ({"reason": "no reason given"}, (3,)),
        ({"task": "count"}, (0,)),
        ({"task": "sum@vm:2-b"}, (2,)),
        ({"spout": "late"}, (2,)),
        ({"spout": "idle"}, ()),
        ({"contains": "city", "spout": "in"}, (0,)),
        ({"contains": "nothing has this"}, ()),
    ],
)
def test_a_filter_selects_dead_letters_that_match_all_of_its_parts(
    wanted: dict[str, str], found: tuple[int, ...]
):
    selected = select(ALL, DeadLetterFilter(**wanted), SPOUTS)
    assert tuple(each.offset for each in selected.dead_letters) == found


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"reason": "no city"}, "none of the 4 dead letters that were read has the reason 'no city'"),
        ({"task": "vm:1-a"}, "none of the 4 dead letters that were read has the task"),
        ({"spout": "x" * 5_000}, "the topology has no spout 'xxx"),
    ],
)
def test_a_filter_that_names_something_unknown_is_refused(wanted: dict[str, str], sentence: str):
    with pytest.raises(UnknownFilter, match="there are:") as caught:
        select(ALL, DeadLetterFilter(**wanted), SPOUTS)
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 500


def test_only_the_newest_matches_are_kept():
    selection = Selection(DeadLetterFilter(contains="city"), SPOUTS, 10, without_content)
    whole = replace(FIRST, key="k", value="v" * 200, failed_value="f" * 10_000, stack="s" * 4_000)
    for number in range(1_000):
        selection.add(replace(whole, offset=number, time_ms=number, reason=f"no city {number % 2}"))
        assert len(selection._kept) <= 20
    found = selection.newest({"0/999": "a/0/77"})
    assert [(each.reason, each.count) for each in found.reasons] == [("no city 0", 500), ("no city 1", 500)]
    assert [each.offset for each in found.dead_letters] == list(range(999, 989, -1))
    assert [each.corrected_as for each in found.dead_letters[:2]] == ["a/0/77", ""]
    assert {(each.value, each.failed_value, each.stack) for each in found.dead_letters} == {(None, None, "")}


def test_reasons_are_counted_over_all_that_match_the_rest_of_the_filter():
    twice = (*ALL, replace(FIRST, offset=9))
    selected = select(twice, DeadLetterFilter(reason="no city 'Y'", contains="city"), SPOUTS)
    assert [(each.reason, each.count) for each in selected.reasons] == [
        ("no city 'X'", 2),
        ("no city 'Y'", 1),
    ]


def test_a_link_keeps_the_filter_and_every_character_of_a_reason():
    wanted = DeadLetterFilter(reason="a&b=c\n \u202e", spout="in")
    assert query(wanted, page=2) == "?reason=a%26b%3Dc%0A%20%E2%80%AE&spout=in&page=2"
    assert query(wanted, reason="") == "?spout=in"
    assert query(DeadLetterFilter()) == ""


def ascii_start(text: str) -> str:
    """Return an id for a parameter."""
    return ascii(text[:9])


class ForeignRecord:
    """A record of the dead-letter topic that somebody else wrote."""

    def __init__(self, **headers: bytes) -> None:
        self._headers = [(f"acktree-{name}", value) for name, value in headers.items()]

    def headers(self):
        return self._headers

    def timestamp(self):
        return 1, 0

    partition = offset = key = value = lambda self: None


@pytest.mark.parametrize("number", ["9" * 5_000, "\u00b2", "-1", "", "0x1"], ids=ascii_start)
def test_malformed_numbers_are_unknown(number: str):
    attempts = dead_letter_of(ForeignRecord(attempts=number.encode(), origin=b"a/0/1"), {"a": "in"})
    assert (attempts.attempts, attempts.source_offset, attempts.spout) == (None, 1, "in")
    for origin in (f"a/{number}/1", f"a/0/{number}"):
        found = dead_letter_of(ForeignRecord(origin=origin.encode()), {"a": "in"})
        assert (found.topic, found.source_partition, found.source_offset, found.spout) == ("", -1, -1, "")
        assert reason_of(found) == "no reason given"


def published() -> Published:
    slots = (
        Slot(slot=0, spout="in", topic="a", topic_id="id", partition=0),
        Slot(slot=1, spout="in", topic="b", topic_id="old", partition=0),
    )
    spouts = {"in": {"topics": ("a", "b"), "tasks": 1}}
    return Published.model_validate(
        {"name": "t", "version": 3, "spouts": spouts, "spout_tasks": {"in": (0,)}, "slots": slots}
    )


STATES = {("a", 0): PartitionState("id", 10, 30, 30), ("b", 0): PartitionState("new", 0, 30, 30)}


def test_each_dead_letter_is_replayed_or_refused_by_name():
    letters = [
        replace(FIRST, offset=4, source_offset=9),
        FIRST,
        SLOW,
        replace(FIRST, offset=5, source_offset=30),
        replace(FIRST, offset=6, source_partition=7),
        replace(FIRST, offset=7, topic="b"),
        replace(FIRST, offset=8, topic="unknown"),
        FOREIGN,
        replace(FIRST, offset=9, source_offset=8),
    ]
    plan = plan_dead_letters(published(), letters, STATES)
    (command,) = plan.replay.commands
    assert (command.topic, command.spans) == ("a", (Span(20, 22),))
    assert plan.head() == "2 dead letters of 2 reasons will be replayed: 2 source records"
    refused = {name: each.why for each in plan.refused for name in each.names}
    assert set(refused) | {"0/0", "0/1"} == {f"{each.partition}/{each.offset}" for each in letters}
    assert refused["0/4"] == refused["0/9"] == GONE
    assert refused["0/5"].endswith("a/0 ends before 30")
    assert "it must be 0 to 0" in refused["0/6"]
    assert "recreated" in refused["0/7"]
    assert "no spout of topology t reads topic 'unknown'" in refused["0/8"]
    assert "does not name its source record" in refused["0/3"]
    (both,) = [line for line in plan.refusals() if "0/4 0/9" in line]
    assert both.startswith("refused: 2 dead letters, 0/4 0/9: its source record is gone")


def test_several_dead_letters_of_a_record_are_one_replay():
    plan = plan_dead_letters(published(), [FIRST, replace(FIRST, offset=9, reason="another")], STATES)
    assert plan.head() == "2 dead letters of 2 reasons will be replayed: 1 source record"
    assert plan.to_json() == {"dead_letters": 2, "records": 1, "reasons": 2, "refused": []}


def test_a_plan_of_nothing_writes_nothing():
    plan = plan_dead_letters(published(), [FOREIGN], STATES)
    assert (plan.replay.commands, plan.dead_letters) == ((), 0)
