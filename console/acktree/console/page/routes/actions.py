"""Handles the actions of visitors: requests a replay's plan, and confirms it.

Invariant: only the plan that was shown is carried out, and each plan once, however often its form is sent:
its ticket is taken before anything is written, and afterwards stands for the outcome.
"""

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from acktree.console.dead_letter_replay import DeadLetterPlan, read_and_plan_dead_letters
from acktree.console.page.serving.questions import FILTER, BadQuery, asked_filter, whole_number
from acktree.console.replay import PlannedCommand, ReplayPlan, Wanted, read_and_plan, write_commands
from acktree.console.view.cluster import Cluster
from acktree.console.view.records.dead_letter_filter import select
from acktree.console.view.records.dead_letters import NEWEST, DeadLetter, read_dead_letter, read_newest
from acktree.core.kafka.settings import Settings
from acktree.wire.control_records import Span
from acktree.wire.errors import AcktreeError

MAX_OPEN_PLANS = 100
"""How many plans wait for their confirmation, and how many outcomes are remembered."""
ASKED = ("topic", "partition", "first", "following", "letters", "matching")
"""What a plan is asked for by; `matching` asks by a filter of dead letters, whose fields come beside it."""

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan as shown on a page; ``ticket`` is valid for one confirmation."""

    asked: Mapping[str, str]
    wanted: tuple[Wanted, ...]
    replay: ReplayPlan
    lines: tuple[str, ...]
    refused: tuple[str, ...]
    ticket: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a confirmed plan; ``is_repeated``: its form was sent again, and nothing was done."""

    done: tuple[str, ...]
    refused: tuple[str, ...]
    is_repeated: bool = False


class Actions:
    """Plans replays and carries confirmed ones out."""

    def __init__(self, bootstrap: str, user: Settings) -> None:
        self._bootstrap, self._user = bootstrap, user
        self._open: OrderedDict[str, ShownPlan] = OrderedDict()
        self._outcomes: OrderedDict[str, Outcome] = OrderedDict()

    def plan(self, cluster: Cluster, asked: Mapping[str, str]) -> ShownPlan:
        """Return the plan for what is asked for.

        Raises:
            NotReplayable, UnknownDeadLetter, UnknownFilter, BadQuery: see their docstrings.
        """
        cluster.refresh()
        ticket = secrets.token_urlsafe(16)
        if asked["letters"] or asked["matching"]:
            shown = self._plan_of_dead_letters(cluster, asked, ticket)
        else:
            wanted = _range(asked)
            plan = read_and_plan(cluster, wanted, self._user)
            shown = ShownPlan(asked, wanted, plan, tuple(plan.lines()), (), ticket)
        _keep(self._open, ticket, shown)
        return shown

    def _plan_of_dead_letters(self, cluster: Cluster, asked: Mapping[str, str], ticket: str) -> ShownPlan:
        lines = []
        if asked["matching"]:
            found = read_newest(cluster, NEWEST)
            selected = select(found.dead_letters, asked_filter(asked), found.spouts)
            dead_letters: Sequence[DeadLetter] = selected.dead_letters
            asked_for = [f"{name} {asked[name]!r}" for name in FILTER if asked[name]]
            lines += [f"filter: {', '.join(asked_for)}"] if asked_for else []
            if found.has_older:
                lines.append(f"only the newest {NEWEST:,} dead letters are considered; there are older ones")
            lines += found.unread
        else:
            dead_letters = [read_dead_letter(cluster, *place) for place in _places(asked["letters"])]
        plan: DeadLetterPlan = read_and_plan_dead_letters(cluster, dead_letters, self._user)
        lines = [plan.head(), *lines, *plan.replay.lines()]
        return ShownPlan(asked, plan.wanted, plan.replay, tuple(lines), tuple(plan.refusals()), ticket)

    def carry_out(self, cluster: Cluster, ticket: str) -> ShownPlan | Outcome:
        """Carry a confirmed plan out; return the new plan where the cluster has changed since.

        Raises:
            BadQuery: the ticket is not one of this page's, or too old.
            NotReplayable: nothing of the plan can be replayed any more.
            BrokerUnreachable, BrokerRefused: nothing was written, or nothing is known to be.
        """
        if (outcome := self._outcomes.get(ticket)) is not None:
            return replace(outcome, is_repeated=True)
        shown = self._open.pop(ticket, None)
        if shown is None:
            raise BadQuery("this plan was carried out already, or is too old; plan the replay again")
        cluster.refresh()
        plan = read_and_plan(cluster, shown.wanted, self._user)
        if _effect(plan) != _effect(shown.replay):
            return self.plan(cluster, shown.asked)
        outcome = _outcome(plan.commands, write_commands(self._bootstrap, plan, self._user), shown.refused)
        _keep(self._outcomes, ticket, outcome)
        return outcome


def _effect(plan: ReplayPlan) -> list[tuple[str, int, tuple[Span, ...]]]:
    """Return what a plan writes; a frontier moves on while a plan is read, and changes nothing of it."""
    return [(command.result_topic, command.slot, command.spans) for command in plan.commands]


def _outcome(
    commands: Sequence[PlannedCommand], results: Sequence[int | AcktreeError], refused: tuple[str, ...]
) -> Outcome:
    """Return what was written and what was refused. Raises the error where nothing was written."""
    errors = [result for result in results if isinstance(result, AcktreeError)]
    if errors and len(errors) == len(results):
        raise errors[0]
    done, failed = [], []
    for command, result in zip(commands, results, strict=True):
        what = f"replay {command.offsets} offset(s) of {command.topic}/{command.partition}"
        if isinstance(result, int):
            done.append(f"{what}: written to {command.result_topic} at offset {result}")
        else:
            failed.append(f"refused: {what}: {result}")
    return Outcome(tuple(done), (*failed, *refused))


def _keep(kept: OrderedDict[str, Kept], ticket: str, value: Kept) -> None:
    kept[ticket] = value
    while len(kept) > MAX_OPEN_PLANS:
        kept.popitem(last=False)


def _places(names: str) -> list[tuple[int, int]]:
    """Return partition and offset of dead letters that are named. Raises BadQuery."""
    split = names.replace(",", " ").split()
    if len(split) > NEWEST:
        raise BadQuery(f"{len(split)} dead letters are too many for one plan; {NEWEST} at most")
    parts = [name.rpartition("/") for name in split]
    return [
        (whole_number(partition or "0", "partition"), whole_number(offset, "dead letter"))
        for partition, _, offset in parts
    ]


def _range(asked: Mapping[str, str]) -> tuple[Wanted, ...]:
    if not asked["topic"]:
        raise BadQuery("no records were named: give a topic, a partition and two offsets, or dead letters")
    partition, first, following = (
        whole_number(asked[name], name) for name in ("partition", "first", "following")
    )
    return (Wanted(asked["topic"], partition, (Span(first, following),)),)
