"""Reads the settings of a spout written in Python from its topology: its name, its slot, its retries.

Invariant: a name, a task or a setting that does not fit is refused or logged at the start.
"""

import logging

from acktree.core.topology.file import SpoutTable
from acktree.core.topology.registry import History, Published, Slot
from acktree.core.topology.retry_policy import RetryPolicy, retry_policy
from acktree.producers.errors import UnknownComponent
from acktree.producers.spout import Spout

RETRY_SETTINGS = ("max_attempts", "retry_initial_s", "retry_max_s")

log = logging.getLogger("acktree.spout")


def find_spout_name(latest: Published, spout: Spout, wanted: str | None) -> str:
    """Return the spout's name in the topology: ``wanted``, its class's, or the only one without topics.

    Raises:
        UnknownComponent: there is no such spout, it reads topics, or there are several to choose from.
    """
    candidates = [name for name, table in latest.spouts.items() if not table.topics]
    name = wanted or spout.name or (candidates[0] if len(candidates) == 1 else "")
    if name in candidates:
        return name
    raise UnknownComponent(
        f"topology {latest.name} has no spout {name!r} without topics; it has: "
        f"{', '.join(candidates) or 'none'}"
    )


def policy_of(history: History, spout: str) -> RetryPolicy:
    """Return the retry policy of a spout in the newest version that has it."""
    return retry_policy(history.latest_with(spout), spout)


def slot_of(latest: Published, spout: str, task: int) -> Slot:
    """Return the slot of a task. Raises UnknownComponent."""
    for slot in latest.slots_of(spout):
        if slot.topic == "" and slot.partition == task:
            return slot
    raise UnknownComponent(f"task {task} of spout {spout} has no slot; apply the topology again")


def warn_of_failures(latest: Published, name: str, spout: Spout) -> None:
    """Say at the start of a spout without ``retry`` what becomes of failures, and of settings for them."""
    kind = type(spout)
    if kind.fail is Spout.fail:
        log.warning(
            "spout %s does not emit failed messages again unless its source supplies them after a restart: "
            "%s has neither a method fail nor retry = True",
            *(name, kind.__name__),
            extra={"action": "fail_unhandled"},
        )
    table, fields = latest.spouts[name], SpoutTable.model_fields
    given = [key for key in RETRY_SETTINGS if getattr(table, key) != fields[key].default]
    if given:
        log.warning(
            "spout %s ignores its settings %s: %s handles fail itself; with retry = True in the class "
            "the worker emits failed messages again",
            *(name, ", ".join(given), type(spout).__name__),
            extra={"action": "retry_unused"},
        )
