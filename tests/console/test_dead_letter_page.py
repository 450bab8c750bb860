"""The page of dead letters without a broker: filtered, counted, paged, escaped, and what it refuses."""

import dataclasses
import html
import re

import pytest

from acktree.console.page.serving.frame import Frame
from acktree.console.view.records.dead_letters import DeadLetter, NewestDeadLetters
from console.test_page import HOSTILE, Elements, page

LETTER = DeadLetter(
    0, 0, 1, "lines", 0, 0, 3, "FAILED", "count@vm:1", "bad line & more", None, None, 0, {}, "lines"
)
OFFSETS = [
    dataclasses.replace(LETTER, offset=offset, reason="no city" if offset % 3 == 0 else LETTER.reason)
    for offset in range(120)
]


@pytest.fixture
def listing(monkeypatch):
    """A page of 120 dead letters, every third of another reason."""

    async def read(frame, query):
        return NewestDeadLetters(tuple(OFFSETS), True, ("lines",))

    monkeypatch.setattr(Frame, "read", read)
    return page(allow_actions=True)


def shown_by(answer):
    return [int(each) for each in re.findall(r'"/dead-letters/0/(\d+)"', answer.text)]


def test_dead_letters_are_counted_and_filtered_by_reason_and_paged(listing):
    first = listing.get("/dead-letters")
    assert shown_by(first) == list(range(50))
    assert re.findall(r'class="n">(\d+)</td><td><a href="([^"]*)">', first.text) == [
        ("80", "/dead-letters?reason=bad%20line%20%26%20more"),
        ("40", "/dead-letters?reason=no%20city"),
    ]
    assert shown_by(listing.get("/dead-letters?reason=no%20city")) == list(range(0, 120, 3))
    bad = listing.get("/dead-letters?reason=bad line %26 more")
    (older,) = re.findall('<a href="([^"]*)">older', bad.text)
    assert shown_by(listing.get(html.unescape(older))) == [each for each in range(120) if each % 3][50:]
    assert shown_by(listing.get("/dead-letters?contains=CITY&page=0")) == list(range(0, 120, 3))
    assert "only the newest 120 were read, there are older ones" in first.text


def test_the_json_of_dead_letters_is_paged_and_counts_like_the_page(listing):
    found = listing.get("/dead-letters.json?reason=&page=2").json()
    assert [each["offset"] for each in found["dead_letters"]] == list(range(100, 120))
    counts = {name: found[name] for name in ("page", "pages", "matching", "read", "has_older")}
    assert counts == {"page": 2, "pages": 3, "matching": 120, "read": 120, "has_older": True}
    assert found["reasons"] == [
        {"reason": "bad line & more", "count": 80},
        {"reason": "no city", "count": 40},
    ]
    filtered = listing.get("/dead-letters.json?reason=no%20city&task=count&spout=lines").json()
    assert (filtered["matching"], filtered["pages"]) == (40, 1)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ("page=x", "must be a whole number"),
        ("page=-1", "must be a whole number"),
        (f"page={'9' * 5_000}", "must be a whole number"),
        ("page=%C2%B2", "must be a whole number"),
        ("page=3", "page=3 is past the last one: there are 3"),
        ("reason=unknown", "has the reason 'unknown'"),
        ("reason=no%20city%20", "has the reason 'no city '"),
        (f"reason={'x' * 20_000}", "has the reason"),
        ("task=sum", "has the task 'sum'"),
        ("spout=nothing", "has no spout 'nothing'"),
    ],
    ids=lambda text: text[:20],
)
def test_a_bad_request_for_dead_letters_is_answered_with_a_sentence(listing, bad, sentence):
    for path in ("/dead-letters", "/dead-letters.json"):
        answer = listing.get(f"{path}?{bad}")
        text = answer.json()["error"] if path.endswith("json") else html.unescape(answer.text)
        assert (answer.status_code, sentence in text) == (400, True), text
        assert len(text) < 3_000


def test_a_replay_of_all_matches_is_offered_with_the_filter(listing, monkeypatch):
    (link,) = re.findall('href="(/replay[?][^"]*)"', listing.get("/dead-letters?reason=no%20city").text)
    assert html.unescape(link) == "/replay?reason=no%20city&matching=1"
    assert "these 40 dead letters" in listing.get("/dead-letters?reason=no%20city").text
    assert "/replay" not in page().get("/dead-letters").text, "a page that is read-only"


def test_the_page_lists_the_most_frequent_of_many_reasons(monkeypatch):
    many = [dataclasses.replace(LETTER, offset=n, reason=f"reason {n}") for n in range(100)]

    async def read(frame, query):
        return NewestDeadLetters(tuple(many), False, ("lines",))

    monkeypatch.setattr(Frame, "read", read)
    text = page().get("/dead-letters").text
    assert "of 70 more reasons" in text
    assert text.count("/dead-letters?reason=") == 30
    assert len(page().get("/dead-letters.json").json()["reasons"]) == 100


def test_html_and_control_characters_of_dead_letters_are_visible_text(monkeypatch):
    hostile = dataclasses.replace(LETTER, reason=f"{HOSTILE}\x1b[2J", task=HOSTILE, spout=HOSTILE)

    async def read(frame, query):
        return NewestDeadLetters((hostile,), False, (HOSTILE,))

    monkeypatch.setattr(Frame, "read", read)
    text = page(allow_actions=True).get("/dead-letters", params={"contains": HOSTILE}).text
    assert "img" not in Elements(text).names
    assert f"{html.escape(HOSTILE)}\\x1b[2J" in text
    assert "\x1b" not in text


FAILED = dataclasses.replace(
    LETTER,
    key="k",
    failed_tuple="words/0/9",
    failed_value="<b>secret</b>",
    failed_value_note="the first 16,384 of 20,000 bytes",
    stack="in execute\n<i>ValueError</i>\n",
    corrects="lines/0/2",
    corrected_as="lines/0/8",
)


@pytest.mark.parametrize("payloads", [True, False])
def test_a_dead_letter_shows_the_failed_tuple_and_its_correction(monkeypatch, payloads):
    async def read(frame, query):
        return FAILED

    monkeypatch.setattr(Frame, "read", read)
    text = page(allow_actions=True, payloads=payloads).get("/dead-letters/0/0").text
    assert "words/0/9" in text
    assert "in execute\n&lt;i&gt;ValueError&lt;/i&gt;" in text
    assert ("&lt;b&gt;secret&lt;/b&gt; (the first 16,384 of 20,000 bytes)" in text) == payloads
    assert "/trace?topic=lines&amp;partition=0&amp;offset=8" in text
    assert "/trace?topic=lines&amp;partition=0&amp;offset=2" in text
    assert "Plan a replay" not in text, "it is closed"
    assert "secret" not in text or payloads


def test_dead_letters_are_filtered_by_key_and_time_and_a_key_is_payload(monkeypatch):
    letters = [dataclasses.replace(FAILED, offset=at, time_ms=at, key=f"k{at % 2}") for at in range(10)]

    async def read(frame, query):
        return NewestDeadLetters(tuple(letters), False, ("lines",))

    monkeypatch.setattr(Frame, "read", read)
    assert shown_by(page().get("/dead-letters?key=k1")) == [1, 3, 5, 7, 9]
    assert shown_by(page().get("/dead-letters?key=k1&since_ms=3&until_ms=7")) == [3, 5, 7]
    assert page().get("/dead-letters?key=other").status_code == 400
    assert page().get("/dead-letters?since_ms=x").status_code == 400
    assert page(payloads=False).get("/dead-letters?key=k1").status_code == 400
