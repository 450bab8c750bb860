"""Questions to a broker and their answers, as values, and the table of them. Pure.

Invariant: a missing or empty answer is NO_ANSWER: nothing is concluded from it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from acktree.console.columns import columns


class Answer(StrEnum):
    """The answer to a check, from the best to the worst known one; the last two mean "unknown"."""

    WORKS = "works"
    SLOWER = "works slower"
    AT_RISK = "at risk"
    """It works, but what the broker has acknowledged may be lost, or be away for a while."""
    FAILS = "does not work"
    FORBIDDEN = "not allowed to ask"
    NO_ANSWER = "no answer"


_WORST_FIRST = (
    Answer.FAILS,
    Answer.AT_RISK,
    Answer.NO_ANSWER,
    Answer.FORBIDDEN,
    Answer.SLOWER,
    Answer.WORKS,
)


class Conclusion(NamedTuple):
    """An answer, its evidence, and the setting to change; ``advice`` is "" if there is none."""

    answer: Answer
    found: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    check: str
    asked: str
    answer: Answer
    found: str
    advice: str

    def document(self) -> dict[str, str]:
        """Return it for JSON."""
        return {
            "check": self.check,
            "asked": self.asked,
            "answer": self.answer.value,
            "found": self.found,
            "set": self.advice,
        }


def worst(conclusions: Sequence[Conclusion]) -> Conclusion:
    """Return several conclusions as one: the worst answer, and everything that is not as it should be.

    >>> worst([Conclusion(Answer.WORKS, "a"), Conclusion(Answer.AT_RISK, "b", "c"), Conclusion(Answer.WORKS)])
    Conclusion(answer=<Answer.AT_RISK: 'at risk'>, found='b', advice='c')
    >>> worst([]).answer
    <Answer.NO_ANSWER: 'no answer'>
    """
    if not conclusions:
        return Conclusion(Answer.NO_ANSWER)
    answer = min((conclusion.answer for conclusion in conclusions), key=_WORST_FIRST.index)
    wrong = [conclusion for conclusion in conclusions if conclusion.answer is not Answer.WORKS]
    named = wrong or conclusions
    return Conclusion(
        answer,
        _joined(conclusion.found for conclusion in named),
        _joined(conclusion.advice for conclusion in named),
    )


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def is_sound(findings: Iterable[Finding]) -> bool:
    """Return whether nothing was found that does not work."""
    return all(finding.answer is not Answer.FAILS for finding in findings)


def as_table(findings: Iterable[Finding]) -> str:
    """Return the findings as a table under an upper-case head; the longest column is the last."""
    rows = [
        (finding.check, finding.asked, finding.answer.value, finding.advice, finding.found)
        for finding in findings
    ]
    return columns(("CHECK", "ASKED", "ANSWER", "SET", "FOUND"), rows)


def summary(findings: Sequence[Finding]) -> str:
    """Return how many checks have which answer.

    >>> summary([Finding("a", "", Answer.WORKS, "", ""), Finding("b", "", Answer.NO_ANSWER, "", "")])
    '2 checks: 1 works, 1 no answer'
    """
    counts = {answer: sum(finding.answer is answer for finding in findings) for answer in Answer}
    parts = [f"{count} {answer.value}" for answer, count in counts.items() if count]
    return f"{len(findings)} checks: {', '.join(parts)}"
