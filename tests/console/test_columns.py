"""Text of others on a terminal: nothing of it moves the cursor, sets a title or hides the rest of a line."""

import pytest
from rich.console import Console

from acktree.console.columns import columns, printable
from acktree.console.commands import dead_letter, pending
from acktree.console.commands.trace import _message
from acktree.console.view.dead_letters import DeadLetter
from acktree.console.view.documents import PendingRecord
from acktree.console.view.tree import At, ControlEntry

EVIL = "broken\x1b[2J\x1b]0;title\x07\u202egpj\x9b31m"
SHOWN = r"broken\x1b[2J\x1b]0;title\x07\u202egpj\x9b31m"


def test_a_cell_shows_control_characters_instead_of_sending_them():
    assert columns(("A",), [(EVIL,)]) == f"A\n{SHOWN}"
    assert columns(("A",), [("one\ntwo",)]) == "A\n" + r"one\ntwo"


@pytest.mark.parametrize("text", ["Grüße, 世界 🎉", "a\u200db", "\xa0"])
def test_what_a_terminal_shows_stays_as_it_is(text: str):
    assert printable(text) == text


def test_reasons_in_lists_are_short_and_without_control_characters():
    letter = DeadLetter(
        partition=0, offset=1, time_ms=0, topic="t", source_partition=0, source_offset=2, attempts=3,
        cause="failed", task="b@h", reason=EVIL + "x" * 200, key=None, value=None, value_bytes=0, headers={},
    )  # fmt: skip
    row = columns(("",) * 8, [dead_letter._row(letter)])
    assert SHOWN in row
    assert "\x1b" not in row
    assert row.rstrip().endswith("x…")
    record = PendingRecord("s", "t", 0, 2, 0, "waiting", 1.0, "00", 1, EVIL)
    assert SHOWN in pending.in_text([record])


def test_a_trace_shows_a_reason_with_its_lines_and_without_control_characters():
    message = ControlEntry("fail", "b@h\x1b[1m", None, f"{EVIL}\nline 2", At("t", 0, 1, 0))
    console = Console(force_terminal=True, width=200, color_system=None)
    with console.capture() as capture:
        console.print(_message(message))
    assert f"{SHOWN}\nline 2" in capture.get()
    assert "\x1b" not in capture.get()
