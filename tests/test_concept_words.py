"""Each word of a public name is in the glossary of docs/concepts.md, a term of the field or plain English."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import public_names

HOUSE = Path(__file__).parents[1]
GLOSSARY = (HOUSE / "docs" / "concepts.md").read_text("utf-8").split("## Glossary\n")[1]
LIST = (Path(__file__).parent / "plain_words.txt").read_text("utf-8")
FIELDS = ["Kafka", "Storm", "Spark", "Python", "Prometheus and OpenTelemetry", "English"]
COLLECTED: tuple[Callable[[], set[str]], ...] = (
    public_names.api,
    public_names.errors,
    public_names.topology_keys,
    public_names.source_options,
    public_names.environment,
    public_names.commands,
    public_names.json_fields,
    public_names.loggers,
    public_names.actions,
    public_names.documented_actions,
    public_names.documented_metrics,
    public_names.labels,
    public_names.alerts,
)
IRREGULAR = {
    "begun": "begin",
    "broken": "break",
    "children": "child",
    "fell": "fall",
    "gave": "give",
    "given": "give",
    "held": "hold",
    "kept": "keep",
    "known": "know",
    "lost": "lose",
    "sent": "send",
    "shown": "show",
    "struck": "strike",
    "taken": "take",
    "took": "take",
    "written": "write",
}
MIN_STEM = 3


def words(name: str) -> list[str]:
    """Return the words of a name in any case, without the name of the project, units and flags of one letter.

    >>> words("--older-than"), words("allowSkip"), words("JSONSchema"), words("acktree_lag_s")
    (['older', 'than'], ['allow', 'skip'], ['json', 'schema'], ['lag'])
    """
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return [word.lower() for word in found if len(word) > 1 and word.lower() != "acktree"]


def stems(word: str) -> Iterator[str]:
    """Yield a word, and what it may be a form, the negation or the repetition of."""
    yield from forms(word)
    if word.startswith(("un", "re")):
        yield from stems(word[2:])


def forms(word: str) -> Iterator[str]:
    """Yield a word, and what it may be the plural of, or a form of a verb, or an adjective in -able."""
    yield word
    if word in IRREGULAR:
        yield IRREGULAR[word]
    for ending, others in ENDINGS.items():
        if word.endswith(ending) and word != ending:
            stem = word.removesuffix(ending)
            yield from (stem + other for other in others if len(stem + other) >= MIN_STEM)
            if ending not in ("s", "ies") and stem[-1:] == stem[-2:-1]:
                yield stem[:-1]


ENDINGS = {
    "ies": ("y",),
    "es": ("",),
    "s": ("",),
    "ied": ("y",),
    "ed": ("", "e"),
    "ing": ("", "e"),
    "able": ("", "e"),
}
"""By ending: what may be in its place in the base form."""


@cache
def glossary() -> frozenset[str]:
    """Return the words that the glossary defines, in bold, or in italics within a definition."""
    defined = re.findall(r"^- \*\*(.+?)\*\*", GLOSSARY, re.MULTILINE)
    defined += re.findall(r"(?<!\*)\*([\w -]+)\*(?!\*)", " ".join(GLOSSARY.split()))
    joined = [term.replace("-", "") for term in defined]
    terms = (*defined, *joined)
    return frozenset(stem for term in terms for word in words(term) for stem in forms(word))


def groups() -> dict[str, list[str]]:
    """Return the listed words by field."""
    parts = re.split(r"^## (.+)\n", LIST, flags=re.MULTILINE)[1:]
    return {field: text.split() for field, text in zip(parts[::2], parts[1::2], strict=True)}


@cache
def listed() -> frozenset[str]:
    return frozenset(word for group in groups().values() for word in group)


def word_of(word: str) -> str | None:
    """Return the word of the glossary or the list that a word of a name is, None if it is neither."""
    return next((stem for stem in stems(word) if stem in glossary() or stem in listed()), None)


def unknown(names: Mapping[str, set[str]]) -> list[str]:
    """Return the words that are nowhere explained, each with its names."""
    found: dict[str, set[str]] = {}
    for source, several in names.items():
        for name in several:
            for word in words(name):
                if word_of(word) is None:
                    found.setdefault(word, set()).add(f"{name} ({source})")
    return [f"{word!r} of {', '.join(sorted(several))}" for word, several in sorted(found.items())]


@cache
def collected() -> dict[str, set[str]]:
    """Return all public names by where they are from."""
    return {collect.__name__: collect() for collect in COLLECTED}


def test_every_word_of_a_public_name_is_explained():
    assert all(len(names) > 4 for names in collected().values())
    assert unknown(collected()) == [], (
        "use a word of docs/concepts.md, or one that means what it means elsewhere: see plain_words.txt"
    )


def test_a_word_that_is_on_the_list_is_in_a_name_and_not_in_the_glossary():
    used = {word_of(word) for names in collected().values() for name in names for word in words(name)}
    assert sorted(listed() - used) == [], "no name has them any more: take them off plain_words.txt"
    assert sorted(listed() & glossary()) == [], "docs/concepts.md gives them a meaning of their own"


def test_the_list_is_in_order_by_field_and_has_each_word_once():
    assert list(groups()) == FIELDS
    for group in groups().values():
        assert group == sorted(group)
    assert len(listed()) == sum(map(len, groups().values()))


@pytest.mark.parametrize("name", ["acktree_spout_frobnicated_total", "FrobnicatedBatch", "--frobnicated"])
def test_a_word_that_is_nowhere_explained_is_found_with_its_name(name: str):
    (found,) = unknown({"metrics": {name, "acktree_spout_emitted_total"}})
    assert "'frobnicated'" in found
    assert name in found


@pytest.mark.parametrize(
    ("form", "base"),
    [
        ("tuples", "tuple"),
        ("retries", "retry"),
        ("acked", "ack"),
        ("committed", "commit"),
        ("written", "write"),
        ("executing", "execute"),
        ("replayable", "replay"),
        ("unreadable", "read"),
        ("refolds", "fold"),
    ],
)
def test_a_form_of_a_word_is_that_word(form: str, base: str):
    assert base in stems(form)
