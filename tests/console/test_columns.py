"""Text of others on a terminal: nothing of it moves the cursor, sets a title or hides the rest of a line."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from acktree.console.columns import age_of, columns, moment, printable, second
from acktree.console.commands.changing import dead_letter
from acktree.console.commands.watching.trace import _message
from acktree.console.view.documents import PendingRecord
from acktree.console.view.records.dead_letters import DeadLetter
from acktree.console.view.records.tree import At, ControlEntry
from acktree.console.view.source_view import is_older

EVIL = "broken\x1b[2J\x1b]0;title\x07\u202egpj\x9b31m"
SHOWN = r"broken\x1b[2J\x1b]0;title\x07\u202egpj\x9b31m"


def test_a_cell_shows_control_characters_instead_of_sending_them():
    assert columns(("A",), [(EVIL,)]) == f"A\n{SHOWN}"
    assert columns(("A",), [("one\ntwo",)]) == "A\n" + r"one\ntwo"


@pytest.mark.parametrize("text", ["Grüße, 世界 🎉", "a\u200db", "\xa0"])
def test_printable_text_is_unchanged(text: str):
    assert printable(text) == text


def test_reasons_in_lists_are_short_and_without_control_characters():
    letter = DeadLetter(
        partition=0, offset=1, time_ms=0, topic="t", source_partition=0, source_offset=2, attempts=3,
        cause="failed", task="b@h", reason=EVIL + "x" * 200, key=None, value=None, value_bytes=0, headers={},
    )  # fmt: skip
    row = columns(("",) * 10, [dead_letter._row(letter)])
    assert SHOWN in row
    assert "\x1b" not in row
    assert row.rstrip().endswith("x…")


def test_an_unknown_age_is_never_shown_as_an_age():
    known = PendingRecord("s", "t", 0, 2, 0, "in flight", 75.0, None, 0, 1, "00", 0, 75.0)
    bound = replace(known, age_s=None, at_least_s=45.0, first_emission_ms=None)
    nothing = replace(bound, at_least_s=None)
    assert [age_of(each) for each in (known, bound, nothing)] == ["1 m 15 s", "> 45 s", "unknown"]
    assert [is_older(each, 44.0) for each in (known, bound, nothing)] == [True, True, False]
    assert [is_older(each, 60.0) for each in (known, bound, nothing)] == [True, False, False]


def test_a_trace_shows_a_reason_with_its_lines_and_without_control_characters():
    message = ControlEntry("fail", "b@h\x1b[1m", None, f"{EVIL}\nline 2", At("t", 0, 1, 0))
    console = Console(force_terminal=True, width=200, color_system=None)
    with console.capture() as capture:
        console.print(_message(message))
    assert f"{SHOWN}\nline 2" in capture.get()
    assert "\x1b" not in capture.get()


@pytest.fixture
def nepal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone that is a quarter of an hour off all others."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("nepal")
def test_a_time_has_its_zone_and_its_date_unless_that_is_today():
    assert moment(1_700_000_000_123) == "2023-11-15 03:58:20.123 +0545"
    assert second(1_700_000_000_123) == "2023-11-15 03:58:20 +0545"
    now_ms = int(1000 * time.time())
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} \+0545", moment(now_ms))
    yesterday = moment(now_ms - 86_400_000)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \+0545", yesterday)


def test_a_time_outside_the_calendar_is_shown_as_a_number():
    assert moment(10**20) == f"{10**20} ms since 1970"


def test_a_dead_letter_in_a_list_has_date_and_zone():
    assert re.fullmatch(r"2023-11-1\d \d\d:\d\d:\d\d \S+", dead_letter.clock(1_700_000_000_123))
