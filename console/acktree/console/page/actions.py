"""What visitors may do: ask for a replay's plan, and confirm it.

Invariant: what is carried out is the plan that was shown, by its digest, and each plan is carried out once,
however often its form is sent.
"""

import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from acktree.console.dead_letter_replay import wanted_by
from acktree.console.page.questions import BadQuery, whole_number
from acktree.console.replay import ReplayPlan, Wanted, execute_replay, read_and_plan
from acktree.console.view.cluster import Cluster
from acktree.console.view.dead_letters import read_dead_letter
from acktree.schemas.client_settings import Settings
from acktree.schemas.control_records import Span

MAX_DEAD_LETTERS = 1_000
MAX_OPEN_PLANS = 1_000
ASKED = ("topic", "partition", "first", "following", "letters")


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan as shown on a page; ``ticket`` is valid for one confirmation."""

    plan: ReplayPlan
    digest: str
    ticket: str


class Actions:
    """Plans replays and carries confirmed ones out."""

    def __init__(self, bootstrap: str, user: Settings) -> None:
        self._bootstrap, self._user = bootstrap, user
        self._tickets: OrderedDict[str, str] = OrderedDict()

    def plan(self, cluster: Cluster, asked: Mapping[str, str]) -> ShownPlan:
        """Return the plan for what is asked for. Raises NotReplayable, UnknownDeadLetter, BadQuery."""
        plan = read_and_plan(cluster, _wanted(cluster, asked), self._user)
        digest = hashlib.sha256(json.dumps(plan.to_json()["commands"]).encode()).hexdigest()
        ticket = secrets.token_urlsafe(16)
        self._tickets[ticket] = digest
        while len(self._tickets) > MAX_OPEN_PLANS:
            self._tickets.popitem(last=False)
        return ShownPlan(plan, digest, ticket)

    def carry_out(self, cluster: Cluster, asked: Mapping[str, str], ticket: str) -> ShownPlan | list[str]:
        """Carry a confirmed plan out and say what was written; return the new plan where it has changed.

        Raises:
            BadQuery: the ticket was used before, or is not one of this page's.
        """
        digest = self._tickets.pop(ticket, None)
        if digest is None:
            raise BadQuery("this plan was carried out already, or is too old; plan the replay again")
        shown = self.plan(cluster, asked)
        if shown.digest != digest:
            return shown
        self._tickets.pop(shown.ticket, None)
        written = execute_replay(self._bootstrap, shown.plan, self._user)
        return [
            f"replay {command.offsets} offset(s) of {command.topic}/{command.partition}: "
            f"written to {command.result_topic} at offset {offset}"
            for command, offset in zip(shown.plan.commands, written, strict=True)
        ]


def _wanted(cluster: Cluster, asked: Mapping[str, str]) -> list[Wanted]:
    if asked["letters"]:
        names = asked["letters"].replace(",", " ").split()
        if len(names) > MAX_DEAD_LETTERS:
            raise BadQuery(f"{len(names)} dead letters are too many for one plan; {MAX_DEAD_LETTERS} at most")
        places = [name.rpartition("/") for name in names]
        dead_letters = [
            read_dead_letter(
                cluster, whole_number(partition or "0", "partition"), whole_number(offset, "dead letter")
            )
            for partition, _, offset in places
        ]
        return wanted_by(dead_letters)
    if not asked["topic"]:
        raise BadQuery("which records? give a topic, a partition and two offsets, or dead letters")
    numbers = [whole_number(asked[name], name) for name in ("partition", "first", "following")]
    return [Wanted(asked["topic"], numbers[0], (Span(numbers[1], numbers[2]),))]
