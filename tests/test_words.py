"""One word for each thing: docs, code and tests use no word that was given up for another."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1]
PAGES = [*sorted((HOUSE / "docs").glob("*.md"))] + [
    HOUSE / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md")
]
CODE = ("schemas", "producers", "acker_consumer", "spark_app", "console", "tests", "benchmarks", "examples")

PHRASES = {
    "verdict": (r"\bverdicts?\b", "result"),
    "told": (r"\b(?:told|telling)\b", "reported, notified"),
    "judged": (r"\bjudged?\b", "finished"),
    "letters": (r"(?<!\bdead )(?<!\bdead-)\bletters?\b(?!, digits)", "dead letters"),
    "bury": (r"\bbur(?:y|ies|ied|ying)\b", "send to the dead-letter topic"),
    "outlet": (r"\boutlets?\b", "output, buffered producer"),
    "set aside": (r"\bset(?:s|ting)? (?:\w+ )?aside\b", "reject, rejected record"),
    "doomed": (r"\bdoomed\b", "expired"),
    "hear": (r"\bhear(?:s|d|ing)?\b", "receive, read, be called"),
    "a share": (r"\b(?:an?|each|every|no|the) share\b(?! group)", "read task"),
    "stretch": (r"\bstretch(?:es)?\b", "block range, offset range"),
    "a mark": (r"\b(?:an?|each|every|no|the|its|their) marks?\b", "batch commit record"),
    "a note": (r"\b(?:an?|each|every|no|the|its|their|task) notes?\b", "hand-off"),
    "tied": (r"\bt(?:ied|ies)\b", "transactional"),
    "hung": (r"\bhung\b", "timed out (`CallTimedOut`)"),
    "is no good": (r"\b(?:is|are) no good\b", "must be one of"),
    "comes to terms with": (r"\bcom(?:e|es|ing) to terms\b", "supports"),
    "lets go of": (r"\blet(?:s|ting)? go\b", "releases"),
    "lives on": (r"\blives on\b", "keeps running"),
}
"""By retired phrase: what it looks like in a text, and what to write."""

NAMES = {
    "verdict": "result",
    "verdicts": "results",
    "told": "result, finished",
    "tell": "send",
    "tells": "send",
    "telling": "acker updates",
    "judged": "finished",
    "judge": "finish",
    "letter": "dead letter",
    "letters": "dead letters",
    "bury": "send dead letter",
    "buried": "dead lettered",
    "outlet": "output, buffered producer",
    "aside": "rejected record",
    "doomed": "expired buckets",
    "hear": "on delivery, receive",
    "heard": "received",
    "share": "read task",
    "shares": "read tasks",
    "stretch": "block range",
    "stretches": "block ranges",
    "marks": "batch commit records",
    "note": "record",
    "notes": "task hand-off",
    "tie": "transactional",
    "ties": "transactional",
    "tied": "transactional",
    "hung": "timed out",
    "pace": "batch sizing",
    "garbage": "gc tuning",
    "piece": "offset range",
    "pieces": "offset ranges",
    "obey": "apply",
}
"""By retired part of a class's or function's name: what to write. ``letter`` may follow ``dead``."""


def retired_phrases(text: str) -> list[str]:
    """Return what is wrong with a Markdown text; code in it is not read: names there may be documented."""
    prose = re.sub(r"^```.*?^```$|`[^`]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = " ".join(prose.split())
    return [
        f"{found[0]!r} in {prose[max(0, found.start() - 40) : found.end() + 20]!r}: write {use!r}"
        for pattern, use in PHRASES.values()
        for found in re.finditer(pattern, prose, re.IGNORECASE)
    ]


def names(source: str) -> Iterator[str]:
    """Yield the names of all classes and functions of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def retired_parts(name: str) -> list[str]:
    """Return what is wrong with the name of a class or function."""
    parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    return [
        f"{name}: write {NAMES[part]!r} for {part!r}"
        for before, part in zip(["", *parts], parts, strict=False)
        if part in NAMES and not (part.startswith("letter") and before == "dead")
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_retired_word(page: Path):
    assert retired_phrases(page.read_text("utf-8")) == []


@pytest.mark.parametrize("folder", CODE)
def test_a_name_has_no_retired_word(folder: str):
    modules = sorted((HOUSE / folder).rglob("*.py"))
    assert modules
    found = [
        (str(module.relative_to(HOUSE)), wrong)
        for module in modules
        for name in names(module.read_text("utf-8"))
        for wrong in retired_parts(name)
    ]
    assert found == []


def test_a_retired_phrase_is_found_with_the_one_to_write():
    text = "Three\nletters wait for two verdicts. The port is no good; it may be free."
    found = " ".join(retired_phrases(text))
    assert all(PHRASES[phrase][1] in found for phrase in ("letters", "verdict", "is no good"))


@pytest.mark.parametrize(
    "text",
    [
        "Dead\nletters stay; a dead-letter topic holds them.",
        "A name has letters, digits and dots.",
        "The field `verdict` has the result.",
        "```json\n{verdict: 1}\n```\n",
        "A share group shares the work; each must note the last remarks.",
        "It marks records as done.",
    ],
)
def test_other_text_is_accepted(text: str):
    assert retired_phrases(text) == []


@pytest.mark.parametrize("shape", ["{}", "find_{}_of", "Class"])
def test_a_retired_part_of_a_name_is_found(shape: str):
    for part, instead in NAMES.items():
        name = f"Open{part.title()}Reader" if shape == "Class" else shape.format(part)
        assert [instead in wrong for wrong in retired_parts(name)] == [True], name


@pytest.mark.parametrize("name", ["dead_letter", "DeadLetters", "Watermark", "SharedCluster", "notebook"])
def test_a_name_that_only_contains_a_retired_part_is_accepted(name: str):
    assert retired_parts(name) == []


def test_no_class_of_the_tests_has_the_name_of_another():
    classes = [
        (node.name, str(module.relative_to(HOUSE)))
        for module in sorted((HOUSE / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    several = {name for name, count in Counter(name for name, _ in classes).items() if count > 1}
    assert [found for found in classes if found[0] in several] == []
