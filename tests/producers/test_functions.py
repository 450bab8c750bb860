"""Bolts that are functions."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from acktree.producers import BadHandler, Child, Tuple
from acktree.producers.functions import bolt
from acktree.producers.loading import make_handler
from acktree.producers.testing import BoltDouble
from acktree.producers.worker.executing.bolt_kinds import BOLTS


@dataclass
class Word:
    text: str


@dataclass
class FunctionCount:
    text: str
    number: int


def count_of(word: Word) -> FunctionCount | None:
    return FunctionCount(word.text, 1) if word.text else None


@bolt(reads="words", emits="counts")
def one(word: Word) -> FunctionCount | None:
    return count_of(word)


@bolt(reads="words", emits="counts")
def several(word: Word) -> list[FunctionCount]:
    found = count_of(word)
    return [found] if found else []


@bolt(reads="words", emits="counts")
def generated(word: Word) -> Iterator[FunctionCount]:
    if found := count_of(word):
        yield found


@bolt(reads="words", emits="counts")
async def awaited(word: Word) -> FunctionCount | None:
    await asyncio.sleep(0)
    return count_of(word)


@bolt(reads="words", emits="counts")
async def streamed(word: Word) -> AsyncIterator[FunctionCount]:
    await asyncio.sleep(0)
    if found := count_of(word):
        yield found


@pytest.mark.parametrize("function", [one, several, generated, awaited, streamed])
def test_a_function_reads_and_emits_what_its_annotations_say(function):
    double = BoltDouble(function)
    double.give(b'{"text":"a"}', b'{"text":""}', b'{"text":1}', None, b'{"text":"b"}')
    counts = {each.anchors: (each.topic, each.value) for each in double.emitted}
    first, last = b'{"text":"a","number":1}', b'{"text":"b","number":1}'
    assert counts == {(0,): ("counts", first), (4,): ("counts", last)}
    assert double.acked == {0, 1, 4}
    assert double.rejected == {2, 3}


def test_a_decorated_function_is_still_a_function():
    assert one(Word("a")) == FunctionCount("a", 1)
    assert asyncio.run(awaited(Word(""))) is None


@bolt(reads="in", emits=["out", "errors"])
def routed(value: bytes | None, tup: Tuple) -> Child | Iterator[Child] | None:
    if value is None:
        return Child(None, "out", key=tup.key)
    return Child(value, topic="errors" if value == b"bad" else "out", key="k")


def test_a_child_names_its_topic_and_key_and_a_tombstone_is_passed_on():
    double = BoltDouble(routed)
    double.give(b"good", b"bad", None, key=b"own")
    emitted = [(each.topic, each.value, each.key) for each in double.emitted]
    assert emitted == [("out", b"good", b"k"), ("errors", b"bad", b"k"), ("out", None, b"own")]


@pytest.mark.parametrize("is_async", [False, True])
def test_values_get_the_key_that_the_bolt_names_and_a_child_its_own(is_async):
    def first(count: FunctionCount) -> str:
        return count.text[0]

    if is_async:

        @bolt(reads="words", emits="counts", key=first)
        async def counts(word: Word) -> list[FunctionCount | Child]:
            return [FunctionCount(word.text, 1), Child(FunctionCount("own", 2), key=b"k"), Child(None)]

    else:

        @bolt(reads="words", emits="counts", key=first)
        def counts(word: Word) -> list[FunctionCount | Child]:
            return [FunctionCount(word.text, 1), Child(FunctionCount("own", 2), key=b"k"), Child(None)]

    double = BoltDouble(counts)
    double.give(b'{"text":"ab"}', b'{"text":""}')
    assert [each.key for each in double.emitted] == [b"a", b"k", None]
    assert double.failed[1].startswith("IndexError")
    assert double.rejected == set()


def test_a_key_of_a_bolt_that_emits_nothing_is_refused():
    with pytest.raises(BadHandler, match="has a key but emits nothing"):
        bolt(reads="in", key=len)(one)


def test_a_value_without_a_topic_fails_its_tuple_if_there_are_several():
    @bolt(reads="in", emits=["a", "b"])
    def lost(value: bytes) -> bytes:
        return value

    double = BoltDouble(lost)
    double.give(b"x")
    assert double.failed[0].startswith("WrongTopic")


def test_a_function_is_loaded_by_its_name(tmp_path, monkeypatch):
    text = "from acktree.producers import bolt\n\n@bolt(reads='a', emits='b')\ndef upper(v: str) -> str:\n"
    (tmp_path / "upper_function.py").write_text(text + "    return v.upper()\n")
    monkeypatch.chdir(tmp_path)
    made = make_handler("upper_function:upper", BOLTS, "execute")
    assert (made.name, made.reads, made.emits) == ("upper", ("a",), ("b",))


def test_topics_that_are_not_those_of_the_topology_are_refused():
    with pytest.raises(BadHandler, match="one emits counts, but one of the topology emits others"):
        BoltDouble(one, emits=["others"])


def no_annotation(value):
    pass


def no_return(value: bytes):
    pass


def too_many(a: bytes, b: bytes) -> bytes:
    return a


def none_at_all() -> bytes:
    return b""


def unknown(value: "Missing") -> bytes:  # noqa: F821
    return value


def a_list(*values: bytes) -> bytes:
    return values[0]


@pytest.mark.parametrize("function", [no_annotation, no_return, too_many, none_at_all, unknown, a_list, Word])
def test_a_signature_that_says_nothing_is_refused_at_the_import(function):
    with pytest.raises(BadHandler):
        bolt(reads="in", emits="out")(function)


def test_a_function_runs_in_a_whole_topology(topology_tester, tmp_path):
    seen = []

    @bolt(reads="words", emits="counts")
    def count(word: Word) -> FunctionCount:
        return FunctionCount(word.text, 1)

    @bolt(reads="counts")
    async def store(found: FunctionCount) -> None:
        seen.append(found)

    file = tmp_path / "topology.toml"
    file.write_text(
        'name = "t"\n[spouts.lines]\ntopics = ["lines"]\nemits = ["words"]\n'
        '[bolts.count]\nreads = ["words"]\nemits = ["counts"]\n[bolts.store]\nreads = ["counts"]\n'
    )

    def words(line):
        yield {"value": line.value}

    tester = topology_tester(str(file), stages={"lines": words}, bolts={"count": count, "store": store})
    good = tester.send("lines", '{"text":"a"}')
    tester.send("lines", "no json")
    tester.run_until_done()
    assert seen == [FunctionCount("a", 1)]
    assert tester.acked("lines") == [good]
    (letter,) = tester.dead_letters()
    assert letter.attempts == 1
    assert letter.reason.startswith("NotDeserializable: ")
