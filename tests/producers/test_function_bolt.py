"""Bolts that are functions: what they are given, what they return, and what is refused at once."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from acktree.producers import BadHandler, Text, To, Tuple, bolt
from acktree.producers.loading import make_handler
from acktree.producers.testing import BoltDouble
from acktree.producers.worker.bolt_kinds import BOLTS, check_topics
from acktree.schemas.topology import BoltTable


@dataclass
class GivenWord:
    text: str


@dataclass
class WordCount:
    text: str
    count: int


WORD = b'{"text": "a"}'
COUNT = b'{"text":"a","count":1}'


@bolt(reads="words", emits="counts", key=lambda count: count.text)
def count(word: GivenWord) -> WordCount | None:
    return WordCount(word.text, 1) if word.text != "-" else None


@bolt()
async def slow_count(word: GivenWord) -> WordCount:
    return WordCount(word.text, 1)


@bolt()
def many(word: GivenWord) -> list[WordCount]:
    return [WordCount(word.text, number) for number in range(2)]


@bolt()
def each(word: GivenWord) -> Iterator[WordCount]:
    for number in range(2):
        yield WordCount(word.text, number)


@bolt()
async def each_later(word: GivenWord) -> AsyncIterator[WordCount]:
    for number in range(2):
        yield WordCount(word.text, number)


def test_it_stays_the_function_that_it_is() -> None:
    assert count(GivenWord("a")) == WordCount("a", 1)
    assert count.__name__ == "count"


def test_it_gets_an_object_and_emits_one_with_its_key_and_bad_input_is_never_tried_again() -> None:
    double = BoltDouble(count)
    double.give(WORD, b"{}", None, b'{"text": "-"}')
    assert [(one.value, one.key) for one in double.emitted] == [(COUNT, b"a")]
    assert (double.acked, double.rejected) == ({0, 3}, {1, 2})
    assert double.failed[2] == (
        "NoValue: in/0/2 is a tombstone, and count takes no None: annotate its parameter with | None to be "
        "given it"
    )


@pytest.mark.parametrize(("made", "times"), [(slow_count, 1), (many, 2), (each, 2), (each_later, 2)])
def test_it_may_be_async_return_a_list_or_yield(made: Any, times: int) -> None:
    double = BoltDouble(made)
    double.give(*[WORD] * 3)
    assert len(double.emitted) == 3 * times
    assert double.acked == {0, 1, 2}
    assert not double.open


@pytest.mark.parametrize(
    ("annotation", "value", "given"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, b"text", "text"),
        (bytes | None, None, None),
        (GivenWord | None, None, None),
        (GivenWord | None, WORD, GivenWord("a")),
        (list[GivenWord], b"[" + WORD + b"]", [GivenWord("a")]),
        (dict[str, Any], WORD, {"text": "a"}),
        (Any, b"7", 7),
    ],
)
def test_the_annotation_says_what_it_is_given(annotation: Any, value: bytes | None, given: Any) -> None:
    seen = []

    def take(payload):
        seen.append(payload)

    take.__annotations__ = {"payload": annotation}
    double = BoltDouble(bolt()(take))
    double.give(value)
    assert (seen, double.acked) == ([given], {0})


def test_without_an_annotation_it_is_given_the_bytes_and_with_tuple_the_tuple() -> None:
    @bolt()
    def plain(value):
        return value

    @bolt()
    def whole(tup: Tuple) -> bytes | None:
        return tup.key

    @bolt()
    def both(text: str, tup: Tuple) -> To:
        return To(text.upper(), key=tup.key, headers=[("from", tup.topic)], timestamp_ms=7)

    emitted = []
    for made in (plain, whole, both):
        double = BoltDouble(made)
        double.give(b"v", key=b"k")
        emitted += double.emitted
    assert [(one.value, one.key) for one in emitted] == [(b"v", None), (b"k", None), (b"V", b"k")]
    assert (emitted[2].headers, emitted[2].timestamp_ms) == ([("from", b"in")], 7)


def test_values_go_to_several_topics_by_name() -> None:
    @bolt(emits=("good", "bad"))
    def split(number: int) -> list[To]:
        return [To(number, "good" if number > 0 else "bad")]

    double = BoltDouble(split, emits=("good", "bad"))
    double.give(b"1", b"-1")
    assert [(one.topic, one.value) for one in double.emitted] == [("good", b"1"), ("bad", b"-1")]


def test_a_format_takes_the_place_of_annotations() -> None:
    @bolt(reads_as=Text(), emits_as=Text())
    def upper(text):
        return text.upper()

    double = BoltDouble(upper)
    double.give(b"a")
    assert double.emitted[0].value == b"A"


def wrong_none() -> None: ...
def wrong_two(word: GivenWord, other: int) -> None: ...
def wrong_name(word: "Nothing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def wrong_kind(word: BoltDouble) -> None: ...
def wrong_named(*, word: GivenWord) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (wrong_none, "takes no payload"),
        (wrong_named, "takes no payload"),
        (wrong_two, "has a parameter 'other' that nothing is given for"),
        (wrong_name, "annotations of wrong_name cannot be read"),
        (wrong_kind, "values cannot be read as BoltDouble"),
        (GivenWord, "is for functions"),
    ],
)
def test_a_function_that_cannot_be_a_bolt_is_refused_where_it_is_defined(function: Any, text: str) -> None:
    with pytest.raises(BadHandler, match=text):
        bolt()(function)


def test_topics_that_the_topology_does_not_have_are_refused() -> None:
    made = count.bolt()
    check_topics(made, BoltTable(reads=("words",), emits=("counts",)), "count")
    with pytest.raises(BadHandler, match=r"bolts.count.emits is 'totals' in the topology, but count says"):
        check_topics(made, BoltTable(reads=("words",), emits=("totals",)), "count")


def test_it_is_found_by_module_and_name() -> None:
    made = make_handler("producers.test_function_bolt:count", BOLTS, "execute")
    assert type(made).__name__ == "count"
