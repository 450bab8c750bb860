"""`acktree dead-letter list`, `show` and `replay`: records whose attempts are used up."""

import json
import time

import click

from acktree.console.columns import LINES, columns, printable, short_reason
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    format_option,
    topology_option,
)
from acktree.console.commands.replay import carry_out
from acktree.console.dead_letter_replay import wanted_by
from acktree.console.replay import read_and_plan
from acktree.console.view.cluster import Cluster
from acktree.console.view.dead_letters import (
    DeadLetter,
    UnknownDeadLetter,
    dead_letter_of,
    read_dead_letter,
    read_dead_letters,
)
from acktree.console.view.documents import to_json

MAX_DEAD_LETTERS = 1_000_000


@click.group(name="dead-letter")
def dead_letter() -> None:
    """List, show and replay records that used up their attempts."""


@dead_letter.command(name="list")
@topology_option
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="So many at most.")
@format_option
@bootstrap_option
@client_settings_option
def list_dead_letters(
    topology: str, limit: int, style: str, bootstrap: str, settings: dict[str, str]
) -> None:
    """List dead letters, the newest first."""
    cluster = Cluster(bootstrap, topology, settings)
    found = read_dead_letters(cluster, limit)
    cluster.close()
    if style == "json":
        click.echo(json.dumps({"topology": topology, "dead_letters": to_json(found)}))
        return
    head = ("LETTER", "TIME", "TOPIC", "PARTITION", "OFFSET", "ATTEMPTS", "CAUSE", "REASON")
    click.echo(columns(head, map(_row, found)))


def _row(found: DeadLetter) -> tuple[object, ...]:
    place = (found.topic, found.source_partition, found.source_offset) if found.topic else ("", "", "")
    attempts = "" if found.attempts is None else found.attempts
    return (name_of(found), clock(found.time_ms), *place, attempts, found.cause, short_reason(found.reason))


def name_of(found: DeadLetter) -> str:
    """Return how a dead letter is named on the command line: PARTITION/OFFSET of the dead-letter topic."""
    return f"{found.partition}/{found.offset}"


def clock(time_ms: int) -> str:
    """Return a time of day with its date, local."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms / 1000))


def parse_dead_letter(text: str) -> tuple[int, int]:
    """Return (partition, offset) of a dead letter's name.

    >>> parse_dead_letter("7"), parse_dead_letter("1/7")
    ((0, 7), (1, 7))
    """
    partition, _, offset = text.rpartition("/")
    if not (offset.isdigit() and (partition or "0").isdigit()):
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
    record = cluster.record(topic, partition, offset)
    cluster.close()
    if record is None:
        raise UnknownDeadLetter(
            f"{topic}/{partition} holds no record at {offset}; see: acktree dead-letter list"
        )
    found = dead_letter_of(record)
    if style == "json":
        click.echo(json.dumps(to_json(found)))
        return
    place = f"{found.topic}/{found.source_partition}/{found.source_offset}" if found.topic else "not said"
    rows = [
        ("source record", place),
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
@click.option("--execute", is_flag=True, help="Do it. Without this only the plan is printed.")
@format_option
@bootstrap_option
@client_settings_option
def replay(
    names: tuple[str, ...],
    topology: str,
    every: bool,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Emit the source records of dead letters again, with a full set of attempts.

    The dead letters stay where they are. A record that has several of them is replayed once.
    """
    if bool(names) == every:
        raise click.UsageError("name the dead letters to replay, or give --all")
    cluster = Cluster(bootstrap, topology, settings)
    found = (
        read_dead_letters(cluster, MAX_DEAD_LETTERS)
        if every
        else [read_dead_letter(cluster, *parse_dead_letter(name)) for name in names]
    )
    if not found:
        raise UnknownDeadLetter(f"topology {topology} has no dead letters")
    plan = read_and_plan(cluster, wanted_by(found), settings)
    cluster.close()
    carry_out(plan, execute, style, bootstrap, settings)
