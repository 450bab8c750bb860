"""How a key or value is shown: pure, from its bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.console.page.serving.rendering import make_environment, visible
from acktree.console.view.records.payloads import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    SHOWN_BYTES,
    Payload,
    RecordPayload,
    about,
    make_payload,
    missing,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8), below, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES, st.sampled_from([None, 1]))
def test_json_split_into_lines_means_the_same_and_scalars_stay_text(value: object, indent: int | None):
    raw = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    shown = make_payload(raw)
    if shown.form == "json":
        assert isinstance(value, dict | list)
        assert json.loads(shown.text) == value
    elif isinstance(value, dict | list):
        assert len(raw) > SHOWN_BYTES or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH


def test_json_is_shown_as_it_was_written():
    raw = b'{"a": 1.0000000000000000001, "a": 1e999, "b": "\\u001b{[,", "c": [], "d": {}}'
    lines = make_payload(raw).text.splitlines()
    assert lines == [
        "{",
        '  "a": 1.0000000000000000001,',
        '  "a": 1e999,',
        '  "b": "\\u001b{[,",',
        '  "c": [],',
        '  "d": {}',
        "}",
    ]


@given(st.binary(max_size=3 * SHOWN_BYTES))
def test_any_bytes_are_accepted_and_little_is_shown(raw: bytes):
    shown = make_payload(raw)
    assert shown.size_bytes == len(raw)
    assert shown.shown_bytes == min(len(raw), SHOWN_BYTES)
    assert len(shown.text) <= MAX_CHARACTERS
    if shown.form == "hex":
        assert bytes.fromhex(shown.text) == raw[:SHOWN_BYTES]


@pytest.mark.parametrize(
    ("raw", "form", "text"),
    [
        (None, "null", ""),
        (b"", "text", ""),
        ("grün\x1b[31m".encode(), "text", "grün\x1b[31m"),
        (b"\x00\x00\x00\x2a", "hex", "00 00 00 2a"),
        (b"\xff", "hex", "ff"),
        (b"{not json}", "text", "{not json}"),
        (b"[" * SHOWN_BYTES, "text", "[" * SHOWN_BYTES),
        (b'{"a":1', "text", '{"a":1'),
    ],
)
def test_the_bytes_determine_the_form(raw: bytes | None, form: str, text: str):
    shown = make_payload(raw)
    assert (shown.form, shown.text) == (form, text)


def test_deeply_nested_json_stays_on_one_line():
    deep, deeper = (b"[" * depth + b"]" * depth for depth in (MAX_DEPTH, MAX_DEPTH + 1))
    assert (make_payload(deep).form, make_payload(deeper).form) == ("json", "text")


def test_json_whose_lines_would_be_mostly_blanks_stays_on_one_line():
    raw = b"[" * (MAX_DEPTH - 1) + b",".join([b"1"] * 900) + b"]" * (MAX_DEPTH - 1)
    assert len(raw) < SHOWN_BYTES
    assert make_payload(raw).form == "text"


def test_a_character_at_the_limit_is_not_cut_in_two():
    raw = b"x" * (SHOWN_BYTES - 1) + "ü".encode() + b"rest"
    shown = make_payload(raw)
    assert (shown.form, shown.text) == ("text", "x" * (SHOWN_BYTES - 1))
    assert about(shown) == f"text, the first {SHOWN_BYTES:,} of {len(raw):,} bytes"


def test_a_record_that_ends_inside_a_character_is_not_text():
    assert make_payload(b"abc\xc3").form == "hex"


def test_control_characters_are_made_visible():
    assert visible("a\x1b[31m\r\n\tb\u202e\x9b") == "a\\x1b[31m\\r\n\tb\\u202e\\x9b"


@pytest.mark.parametrize("macro", ["record", "folded"])
def test_a_payload_on_the_page_is_escaped_and_its_control_characters_are_visible(macro: str):
    hostile = make_payload(b"<img src=x onerror=alert(1)>\x1b[2J")
    template = make_environment().from_string(
        '{% from "payload.html" import record, folded %}{{ ' + macro + "(payload) }}"
    )
    text = template.render(payload=RecordPayload(Payload("null", "", 0, 0), hostile, None))
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;\\x1b[2J" in text
    assert "null" in text
    assert "no longer" in template.render(payload=missing("it is no longer there"))
