"""Filters dead letters, and counts the reasons for which they were given up. Pure.

Invariant: a filter with a value that no dead letter has is refused; an empty list would look as if all were
well.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from acktree.console.view.records.dead_letters import DeadLetter, preview_of
from acktree.wire.errors import AcktreeError

NO_REASON = "no reason given"
NAMED = 5
NAME_CHARACTERS = 60


class UnknownFilter(AcktreeError):
    """A filter of dead letters names a reason, spout or task that none of them has."""


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """The conditions on dead letters; an empty field sets none.

    ``reason`` is a whole reason, ``contains`` a part of one in any case; ``task`` is a task or its component.
    ``key`` is the source record's, as text; of a long one the part that a list shows counts. ``since_ms`` is
    the first and ``until_ms`` the last time of a dead letter, in ms since 1970, 0 for none; none may be in
    between.
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
    """The number of dead letters with a reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class SelectedDeadLetters:
    """The newest dead letters of a filter, and the reasons of all that match apart from their reason."""

    dead_letters: tuple[DeadLetter, ...]
    reasons: tuple[ReasonCount, ...]


class Selection:
    """Filters dead letters that are read one by one; only names are kept of the rest."""

    def __init__(
        self,
        wanted: DeadLetterFilter,
        spouts: Collection[str],
        limit: int,
        as_kept: Callable[[DeadLetter], DeadLetter] = lambda found: found,
    ) -> None:
        """Keep the newest ``limit`` that match, each ``as_kept``; ``spouts`` are those of the topology."""
        self._wanted, self._spouts, self._limit, self._as_kept = wanted, spouts, limit, as_kept
        self._read, self._has_key = 0, not wanted.key
        self._tasks: dict[str, None] = {}
        self._reasons: dict[str, None] = {}
        self._matching: Counter[str] = Counter()
        self._kept: list[DeadLetter] = []

    def add(self, found: DeadLetter) -> None:
        """Take the next dead letter, in any order."""
        self._read += 1
        reason = reason_of(found)
        self._reasons[reason] = None
        self._tasks |= {name: None for name in (found.task, component_of(found.task)) if name}
        self._has_key = self._has_key or has_key(found, self._wanted.key)
        if not _matches(found, self._wanted):
            return
        self._matching[reason] += 1
        if self._wanted.reason in ("", reason):
            self._kept.append(self._as_kept(found))
            if len(self._kept) > 2 * self._limit:
                self._trim()

    def _trim(self) -> None:
        self._kept.sort(key=lambda each: (-each.time_ms, -each.offset))
        del self._kept[self._limit :]

    def newest(self, closed: Mapping[str, str]) -> SelectedDeadLetters:
        """Return what matches, the newest first; ``closed``: by name what has replaced a dead letter.

        Raises:
            UnknownFilter: see ``select``.
        """
        self._trim()
        found = self.result()
        kept = [
            replace(each, corrected_as=closed[each.name]) if each.name in closed else each
            for each in found.dead_letters
        ]
        return replace(found, dead_letters=tuple(kept))

    def result(self) -> SelectedDeadLetters:
        """Return what matches. Raises UnknownFilter: see ``select``."""
        wanted, read = self._wanted, f"none of the {self._read} dead letters that were read"
        _refuse_unknown("spout", wanted.spout, self._spouts, "the topology")
        _refuse_unknown("task", wanted.task, self._tasks, read)
        if not self._has_key:
            raise UnknownFilter(f"{read} has the key {wanted.key!r}")
        _refuse_unknown("reason", wanted.reason, self._reasons, read)
        counts = (ReasonCount(*each) for each in self._matching.most_common())
        return SelectedDeadLetters(tuple(self._kept), tuple(counts))


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
    """Return what a filter matches of some dead letters, in their order.

    Raises:
        UnknownFilter: none of the dead letters has the reason, task or key, or the topology no such spout.
    """
    selection = Selection(wanted, spouts, len(found))
    for each in found:
        selection.add(each)
    return selection.result()


def _matches(found: DeadLetter, wanted: DeadLetterFilter) -> bool:
    """Return whether a dead letter matches everything in the filter except the reason."""
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
