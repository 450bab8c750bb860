"""`acktree dead-letter list`, `show` and `replay`: records whose attempts are used up."""

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from acktree.console.columns import LINES, columns, printable, short_reason
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    format_option,
    is_offset,
    topology_option,
)
from acktree.console.commands.replay import carry_out
from acktree.console.dead_letter_replay import name_of, read_and_plan_dead_letters
from acktree.console.replay import NotReplayable
from acktree.console.view.cluster import Cluster
from acktree.console.view.dead_letter_filter import (
    DeadLetterFilter,
    SelectedDeadLetters,
    component_of,
    select,
)
from acktree.console.view.dead_letters import (
    DeadLetter,
    UnknownDeadLetter,
    dead_letter_of,
    read_dead_letter,
    read_newest,
    spouts_by_topic,
)
from acktree.console.view.documents import to_json

MAX_DEAD_LETTERS = 1_000_000

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def filter_options(command: Decorated) -> Decorated:
    """Add a filter's options; the command gets `reason`, `contains`, `spout` and `task`, None if absent."""
    for option in (
        click.option("--task", metavar="NAME", help="Those that a task failed, or any task of a bolt."),
        click.option("--spout", metavar="NAME", help="Those of a spout's records."),
        click.option("--contains", metavar="TEXT", help="Those whose reason contains TEXT, in any case."),
        click.option("--reason", metavar="TEXT", help="Those with exactly this reason."),
    ):
        command = option(command)
    return command


@click.group(name="dead-letter")
def dead_letter() -> None:
    """List, show and replay records that used up their attempts."""


@dead_letter.command(name="list")
@topology_option
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="So many at most.")
@filter_options
@click.option("--by-reason", is_flag=True, help="Count them by reason instead of listing them.")
@format_option
@bootstrap_option
@client_settings_option
def list_dead_letters(
    topology: str,
    limit: int,
    reason: str | None,
    contains: str | None,
    spout: str | None,
    task: str | None,
    by_reason: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """List dead letters, the newest first. Filters and counts take all of them, the list a number."""
    wanted = DeadLetterFilter(reason or "", contains or "", spout or "", task or "")
    cluster = Cluster(bootstrap, topology, settings)
    is_whole = by_reason or wanted != DeadLetterFilter()
    selected = _select(cluster, wanted, MAX_DEAD_LETTERS if is_whole else limit)
    cluster.close()
    shown = selected.dead_letters[:limit]
    if style == "json":
        lists = {"reasons": to_json(selected.reasons), "dead_letters": to_json(shown)}
        click.echo(json.dumps({"topology": topology, **lists}))
    elif by_reason:
        counts = [(each.count, short_reason(each.reason)) for each in selected.reasons]
        click.echo(columns(("DEAD_LETTERS", "REASON"), counts))
    else:
        head = ("LETTER", "TIME", "TOPIC", "PARTITION", "OFFSET", "ATTEMPTS", "CAUSE", "TASK", "REASON")
        click.echo(columns(head, map(_row, shown)))


def _select(cluster: Cluster, wanted: DeadLetterFilter, limit: int) -> SelectedDeadLetters:
    found = read_newest(cluster, limit)
    return select(found.dead_letters, wanted, found.spouts)


def _row(found: DeadLetter) -> tuple[object, ...]:
    place = (found.topic, found.source_partition, found.source_offset) if found.topic else ("", "", "")
    attempts = "" if found.attempts is None else found.attempts
    about = (found.cause, component_of(found.task), short_reason(found.reason))
    return (name_of(found), clock(found.time_ms), *place, attempts, *about)


def clock(time_ms: int) -> str:
    """Return a time of day with its date, local."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(time_ms / 1000))


def parse_dead_letter(text: str) -> tuple[int, int]:
    """Return (partition, offset) of a dead letter's name.

    >>> parse_dead_letter("7"), parse_dead_letter("1/7")
    ((0, 7), (1, 7))
    """
    partition, _, offset = text.rpartition("/")
    if not (is_offset(partition or "0") and is_offset(offset)):
        raise click.BadParameter(f"{text!r} is not OFFSET or PARTITION/OFFSET of a dead letter")
    return int(partition or 0), int(offset)


@dead_letter.command()
@click.argument("letter", metavar="[PARTITION/]OFFSET")
@topology_option
@format_option
@bootstrap_option
@client_settings_option
def show(letter: str, topology: str, style: str, bootstrap: str, settings: dict[str, str]) -> None:
    """Show one dead letter: its source record, its last failure, headers, the first bytes of its value."""
    partition, offset = parse_dead_letter(letter)
    cluster = Cluster(bootstrap, topology, settings)
    topic = cluster.topology.dead_letter_topic
    record, spouts = cluster.record(topic, partition, offset), spouts_by_topic(cluster.topology)
    cluster.close()
    if record is None:
        raise UnknownDeadLetter(
            f"{topic}/{partition} holds no record at {offset}; see: acktree dead-letter list"
        )
    found = dead_letter_of(record, spouts, cluster.schemas)
    if style == "json":
        click.echo(json.dumps(to_json(found)))
        return
    place = f"{found.topic}/{found.source_partition}/{found.source_offset}" if found.topic else "not said"
    rows = [
        ("source record", place),
        ("spout", found.spout or "not known"),
        ("dead-lettered", clock(found.time_ms)),
        ("attempts", "not said" if found.attempts is None else found.attempts),
        ("cause", found.cause),
        ("task", found.task),
        ("reason", found.reason),
        ("key", "none" if found.key is None else found.key),
        (f"value, {found.value_bytes} bytes", "none" if found.value is None else found.value),
        *(
            (f"header {name}", "none" if text is None else text)
            for name, text in found.headers.items()
            if not name.startswith("acktree-")
        ),
    ]
    click.echo("\n".join(f"{printable(name):<16} {printable(text, keep=LINES)}" for name, text in rows))
    if found.topic:
        click.echo(f"\ntrace it: acktree trace --topology {topology} --dead-letter {name_of(found)}")


@dead_letter.command()
@click.argument("names", metavar="[[PARTITION/]OFFSET]...", nargs=-1)
@topology_option
@click.option("--all", "every", is_flag=True, help="All dead letters, instead of those named.")
@filter_options
@click.option("--execute", is_flag=True, help="Do it. Without this only the plan is printed.")
@format_option
@bootstrap_option
@client_settings_option
def replay(
    names: tuple[str, ...],
    topology: str,
    every: bool,
    reason: str | None,
    contains: str | None,
    spout: str | None,
    task: str | None,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Emit the source records of dead letters again, with a full set of attempts.

    The dead letters stay where they are. A record that has several of them is replayed once. Of --all and of
    a filter those that cannot be replayed are named, and the others are.
    """
    wanted = DeadLetterFilter(reason or "", contains or "", spout or "", task or "")
    if bool(names) + every + (wanted != DeadLetterFilter()) != 1:
        raise click.UsageError("name the dead letters to replay, or give --all, or a filter")
    cluster = Cluster(bootstrap, topology, settings)
    found = (
        [read_dead_letter(cluster, *parse_dead_letter(name)) for name in names]
        if names
        else _select(cluster, wanted, MAX_DEAD_LETTERS).dead_letters
    )
    if not found:
        raise UnknownDeadLetter(f"topology {topology} has no such dead letters")
    plan = read_and_plan_dead_letters(cluster, found, settings)
    cluster.close()
    if plan.refused and (names or not plan.replay.commands):
        raise NotReplayable("; ".join(plan.refusals()))
    carry_out(plan.replay, execute, style, bootstrap, settings, plan)
