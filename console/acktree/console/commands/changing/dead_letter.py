"""`acktree dead-letter list`, `show` and `replay`: records whose attempts are used up."""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import click

from acktree.console.columns import LINES, columns, printable, short_reason
from acktree.console.commands.changing.edited_value import keep_value, read_value
from acktree.console.commands.changing.replay import carry_out
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    format_option,
    is_offset,
    parse_time_ms,
    topology_option,
)
from acktree.console.dead_letter_edit import carry_out as carry_out_correction
from acktree.console.dead_letter_edit import correct, is_source_gone, read_open_dead_letter
from acktree.console.dead_letter_replay import read_and_plan_dead_letters
from acktree.console.replay import NotReplayable
from acktree.console.view.cluster import Cluster
from acktree.console.view.documents import to_json
from acktree.console.view.records.dead_letter_filter import (
    DeadLetterFilter,
    Selection,
    component_of,
    select,
)
from acktree.console.view.records.dead_letters import (
    DeadLetter,
    UnknownDeadLetter,
    dead_letter_of,
    find_closing,
    read_dead_letter,
    read_newest,
    scan_newest,
    spouts_by_topic,
    without_content,
)
from acktree.core.kafka.settings import Settings

MAX_DEAD_LETTERS = 1_000_000
FILTER_OPTIONS = tuple(field.name for field in dataclasses.fields(DeadLetterFilter))

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def filter_options(command: Decorated) -> Decorated:
    """Add a filter's options; the command gets `wanted: DeadLetterFilter`, what is absent is empty."""

    @functools.wraps(command)
    def with_filter(**given: Any) -> Any:
        fields = {name: given.pop(name) for name in FILTER_OPTIONS}
        return command(wanted=DeadLetterFilter(**{n: value for n, value in fields.items() if value}), **given)

    filtered: Any = with_filter
    for option in (
        click.option(
            "--until",
            "until_ms",
            metavar="TIME",
            callback=as_time_ms,
            help="Dead letters up to a time.",
        ),
        click.option(
            "--since",
            "since_ms",
            metavar="TIME",
            callback=as_time_ms,
            help="Dead letters since a time: 2h (ago), or 2025-01-31T12:00, local unless it has a zone.",
        ),
        click.option("--key", metavar="TEXT", help="Dead letters of source records with exactly this key."),
        click.option(
            "--task",
            metavar="NAME",
            help="Dead letters whose tuple failed in this task, or in any task of this bolt.",
        ),
        click.option("--spout", metavar="NAME", help="Dead letters of this spout's records."),
        click.option(
            "--contains", metavar="TEXT", help="Dead letters whose reason contains TEXT, case-insensitive."
        ),
        click.option("--reason", metavar="TEXT", help="Dead letters with exactly this reason."),
    ):
        filtered = option(filtered)
    return cast(Decorated, filtered)


def as_time_ms(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int:
    """Return a time in ms since 1970: a duration ago, or a date; 0 for none."""
    return 0 if text is None else parse_time_ms(text)


@click.group(name="dead-letter")
def dead_letter() -> None:
    """List, show, replay and correct dead letters."""


@dead_letter.command(name="list")
@topology_option
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of entries."
)
@filter_options
@click.option("--by-reason", is_flag=True, help="Count them by reason instead of listing them.")
@format_option
@bootstrap_option
@client_settings_option
def list_dead_letters(
    topology: str,
    limit: int,
    wanted: DeadLetterFilter,
    by_reason: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """List dead letters, newest first. Filters and counts cover all of them, --limit only the list."""
    cluster = Cluster(bootstrap, topology, settings)
    if by_reason or wanted != DeadLetterFilter():
        selection = Selection(wanted, cluster.topology.spouts, limit)
        scanned = scan_newest(cluster, MAX_DEAD_LETTERS, selection.add)
        selected, read, has_older = selection.newest(scanned.closed), scanned.read, scanned.has_older
        unread = scanned.unread
    else:
        newest = read_newest(cluster, limit)
        selected = select(newest.dead_letters, wanted, newest.spouts)
        read, has_older, unread = len(newest.dead_letters), newest.has_older, newest.unread
    cluster.close()
    shown = selected.dead_letters
    if style == "json":
        lists = {"reasons": to_json(selected.reasons), "dead_letters": to_json(shown)}
        click.echo(json.dumps({"topology": topology, "has_older": has_older, "unread": unread, **lists}))
    elif by_reason:
        counts = [(each.count, short_reason(each.reason)) for each in selected.reasons]
        click.echo(columns(("DEAD_LETTERS", "REASON"), counts))
    else:
        head = (
            "DEAD_LETTER",
            "STATE",
            "TIME",
            "TOPIC",
            "PARTITION",
            "OFFSET",
            "ATTEMPTS",
            "CAUSE",
            "TASK",
            "REASON",
        )
        click.echo(columns(head, map(_row, shown)))
    _say_older(read, has_older)
    _say_unread(unread)


def _say_unread(unread: tuple[str, ...]) -> None:
    for sentence in unread:
        click.echo(f"note: {sentence}", err=True)


def _say_older(read: int, has_older: bool) -> None:
    if has_older:
        click.echo(f"note: only the newest {read:,} dead letters were read; there are older ones", err=True)


def _row(found: DeadLetter) -> tuple[object, ...]:
    place = (found.topic, found.source_partition, found.source_offset) if found.topic else ("", "", "")
    if found.message_id is not None:
        place = (f"spout {found.spout}", "", short_reason(found.message_id))
    attempts = "" if found.attempts is None else found.attempts
    about = (found.cause, component_of(found.task), short_reason(found.reason))
    state = "corrected" if found.corrected_as else "open"
    return (found.name, state, clock(found.time_ms), *place, attempts, *about)


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
    if record is None:
        raise UnknownDeadLetter(
            f"{topic}/{partition} holds no record at {offset}; see: acktree dead-letter list"
        )
    found = dead_letter_of(record, spouts, cluster.schemas)
    found = dataclasses.replace(found, corrected_as=find_closing(cluster, found))
    cluster.close()
    if style == "json":
        click.echo(json.dumps(to_json(found)))
        return
    place = found.source or "not said"
    message = [
        ("emitted to", found.headers.get("acktree-topic")),
        ("tuple", found.headers.get("acktree-tuple")),
    ]
    is_message = found.message_id is not None
    rows = [
        *([("message", found.message_id), *message] if is_message else [("source record", place)]),
        *((name, text) for name, text in _links(found) if text),
        ("spout", found.spout or "not known"),
        ("dead-lettered", clock(found.time_ms)),
        ("attempts", "not said" if found.attempts is None else found.attempts),
        ("cause", found.cause),
        ("task", found.task),
        ("reason", found.reason),
        *((name, text) for name, text in _failed(found) if text),
        *([("note", found.left_out)] if found.left_out else []),
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
        click.echo(f"\ntrace it: acktree trace --topology {topology} --dead-letter {found.name}")


def _links(found: DeadLetter) -> list[tuple[str, str]]:
    return [("it corrects", found.corrects), ("corrected as", found.corrected_as)]


def _failed(found: DeadLetter) -> list[tuple[str, str]]:
    """Return what is known of the tuple that failed."""
    value = found.failed_value or ""
    note = f" ({found.failed_value_note})" if found.failed_value_note else ""
    return [("failed tuple", found.failed_tuple), ("its value", f"{value}{note}"), ("stack", found.stack)]


@dead_letter.command()
@click.argument("names", metavar="[[PARTITION/]OFFSET]...", nargs=-1)
@topology_option
@click.option("--all", "every", is_flag=True, help="All dead letters.")
@filter_options
@click.option("--edit", is_flag=True, help="Correct the value of one dead letter, in an editor.")
@click.option(
    "--value-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="With --edit: the corrected value, - for standard input.",
)
@click.option("--execute", is_flag=True, help="Execute the plan. Without it the plan is only printed.")
@format_option
@bootstrap_option
@client_settings_option
def replay(
    names: tuple[str, ...],
    topology: str,
    every: bool,
    wanted: DeadLetterFilter,
    edit: bool,
    value_file: str | None,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Emit the source records of dead letters again, with a full set of attempts.

    The dead letters stay on their topic. A record with several of them is replayed once. With --all or a
    filter, dead letters that cannot be replayed are named, and the others are replayed.

    With --edit a corrected value becomes a new record of the source topic, and the dead letter is closed. The
    value may be unchanged if the source record is gone.
    """
    if edit or value_file is not None:
        if len(names) != 1 or every or wanted != DeadLetterFilter():
            raise click.UsageError("--edit takes one dead letter: its [PARTITION/]OFFSET")
        _edit(names[0], topology, value_file, execute, style, bootstrap, settings)
        return
    if bool(names) + every + (wanted != DeadLetterFilter()) != 1:
        raise click.UsageError("name the dead letters to replay, or give --all, or a filter")
    cluster = Cluster(bootstrap, topology, settings)
    found: Sequence[DeadLetter]
    if names:
        found = [read_dead_letter(cluster, *parse_dead_letter(name)) for name in names]
    else:
        selection = Selection(wanted, cluster.topology.spouts, MAX_DEAD_LETTERS, without_content)
        scanned = scan_newest(cluster, MAX_DEAD_LETTERS, selection.add)
        _say_older(scanned.read, scanned.has_older)
        _say_unread(scanned.unread)
        found = selection.newest(scanned.closed).dead_letters
    if not found:
        raise UnknownDeadLetter(f"topology {topology} has no such dead letters")
    plan = read_and_plan_dead_letters(cluster, found, settings)
    cluster.close()
    if plan.refused and (names or not plan.replay.commands):
        raise NotReplayable("; ".join(plan.refusals()))
    carry_out(plan.replay, execute, style, bootstrap, settings, plan)


def _edit(
    name: str,
    topology: str,
    value_file: str | None,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: Settings,
) -> None:
    """Print a correction and, where asked to, carry it out."""
    cluster = Cluster(bootstrap, topology, settings)
    letter, record = read_open_dead_letter(cluster, *parse_dead_letter(name))
    value = read_value(value_file, record.value())
    is_gone = value == record.value() and is_source_gone(cluster, letter)
    correction = correct(letter, record, value, is_gone)
    new = None
    if execute:
        try:
            new = carry_out_correction(cluster, correction, settings)
        except BaseException:
            if value_file in (None, "-"):
                click.echo(f"the value is kept in {keep_value(value)}", err=True)
            raise
    cluster.close()
    if style == "json":
        about = {"dead_letter": letter.name, "corrects": letter.source, "value_bytes": len(correction.value)}
        click.echo(json.dumps({"topology": topology, **about, "corrected_as": new}))
    else:
        for line in (*correction.lines(), *([f"written: {new}; the dead letter is closed"] if new else [])):
            click.echo(printable(line))
    if new is None:
        path = value_file if value_file not in (None, "-") else keep_value(correction.value)
        click.echo(f"nothing was changed; to do it: --edit --value-file {path} --execute", err=True)
