"""Which dead letters are wanted, and for which reasons they were given up. Pure.

Invariant: a filter that names what no dead letter has is refused; it is never an empty list, which would look
as if all were well.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from acktree.console.view.dead_letters import DeadLetter, preview_of
from acktree.schemas.errors import AcktreeError

NO_REASON = "no reason given"
NAMED = 5
NAME_CHARACTERS = 60


class UnknownFilter(AcktreeError):
    """A filter of dead letters names a reason, spout or task that none of them has."""


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """What dead letters must have; an empty field asks for nothing.

    ``reason`` is a whole reason, ``contains`` a part of one in any case; ``task`` is a task or its component.
    ``key`` is the source record's, as text; of a long one what a list shows counts. ``since_ms`` is the first
    and ``until_ms`` the last time of a dead letter, in ms since 1970, 0 for none; none may be in between.
    """

    reason: str = ""
    contains: str = ""
    spout: str = ""
    task: str = ""
    key: str = ""
    since_ms: int = 0
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How many dead letters have a reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class SelectedDeadLetters:
    """The dead letters that a filter matches, and the reasons of all that match but for its reason."""

    dead_letters: tuple[DeadLetter, ...]
    reasons: tuple[ReasonCount, ...]


def reason_of(found: DeadLetter) -> str:
    """Return why a record was given up: the reason, else the cause; a timeout has no reason."""
    return found.reason or found.cause.lower().replace("_", " ") or NO_REASON


def component_of(task: str) -> str:
    """Return the bolt or spout of a task.

    >>> component_of("count@vm:5888-a49a"), component_of("")
    ('count', '')
    """
    return task.partition("@")[0]


def select(
    found: Sequence[DeadLetter], wanted: DeadLetterFilter, spouts: Collection[str]
) -> SelectedDeadLetters:
    """Return what a filter matches of some dead letters; ``spouts`` are those of the topology.

    Raises:
        UnknownFilter: none of the dead letters has the reason, task or key, or the topology no such spout.
    """
    tasks = {name for each in found for name in (each.task, component_of(each.task)) if name}
    _refuse_unknown("spout", wanted.spout, spouts, "the topology")
    _refuse_unknown("task", wanted.task, tasks, f"none of the {len(found)} dead letters that were read")
    if wanted.key and not any(has_key(each, wanted.key) for each in found):
        raise UnknownFilter(
            f"none of the {len(found)} dead letters that were read has the key {wanted.key!r}"
        )
    reasons = Counter(map(reason_of, found))
    _refuse_unknown("reason", wanted.reason, reasons, f"none of the {len(found)} dead letters that were read")
    matching = [each for each in found if _matches(each, wanted)]
    counts = Counter(map(reason_of, matching)).most_common()
    return SelectedDeadLetters(
        tuple(each for each in matching if wanted.reason in ("", reason_of(each))),
        tuple(ReasonCount(reason, count) for reason, count in counts),
    )


def _matches(found: DeadLetter, wanted: DeadLetterFilter) -> bool:
    """Return whether a dead letter has all that is wanted but for the reason."""
    return (
        wanted.contains.casefold() in reason_of(found).casefold()
        and wanted.spout in ("", found.spout)
        and wanted.task in ("", found.task, component_of(found.task))
        and (not wanted.key or has_key(found, wanted.key))
        and wanted.since_ms <= found.time_ms
        and (not wanted.until_ms or found.time_ms <= wanted.until_ms)
    )


def has_key(found: DeadLetter, key: str) -> bool:
    """Return whether a source record's key is this text, as far as a list shows it."""
    return found.key == preview_of(key.encode())


def _refuse_unknown(what: str, name: str, known: Iterable[str], where: str) -> None:
    existing = list(known)
    if not name or name in existing:
        return
    shown = ", ".join(repr(_short(each)) for each in existing[:NAMED])
    more = f" and {len(existing) - NAMED} more" if len(existing) > NAMED else ""
    verb = "has no" if where == "the topology" else "has the"
    raise UnknownFilter(f"{where} {verb} {what} {_short(name)!r}; there are: {shown or 'none'}{more}")


def _short(text: str) -> str:
    return text if len(text) <= NAME_CHARACTERS else text[: NAME_CHARACTERS - 1] + "…"
