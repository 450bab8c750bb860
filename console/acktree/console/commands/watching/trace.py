"""`acktree trace`: prints the tree of one source record, read from the log."""

import json
import re

import click
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from acktree.console.columns import LINES, duration, moment, printable
from acktree.console.commands.changing.dead_letter import parse_dead_letter
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    duration_option,
    format_option,
    is_offset,
    topology_option,
)
from acktree.console.commands.watching.describe import EXIT_STUCK
from acktree.console.view.cluster import Cluster
from acktree.console.view.documents import to_json
from acktree.console.view.records.dead_letters import read_dead_letter
from acktree.console.view.records.payloads import RecordPayload, about
from acktree.console.view.records.search import TraceTarget
from acktree.console.view.records.trace import LIMIT_S, Trace, find_trace, target_of_record, target_of_root
from acktree.console.view.records.tree import At, ControlEntry, TracedEmission, TracedTuple
from acktree.console.view.stuck import stuck_after_s
from acktree.core import world

MAX_TUPLES = 40


@click.command()
@click.argument("place", nargs=-1, metavar="[TOPIC PARTITION OFFSET]")
@topology_option
@click.option("--root", metavar="HEX", help="Trace by root id.")
@click.option("--dead-letter", metavar="[PARTITION/]OFFSET", help="Trace the record of a dead letter.")
@duration_option("--since", "Read control records of the last DURATION only. Default: all there are.")
@click.option("--payloads", is_flag=True, help="Also show key and value of the record and its tuples.")
@duration_option("--time-limit", "Stop reading after this long and say what is missing. Default: 60s.")
@format_option
@bootstrap_option
@client_settings_option
@click.pass_context
def trace(
    context: click.Context,
    place: tuple[str, ...],
    topology: str,
    root: str | None,
    dead_letter: str | None,
    payloads: bool,
    since: float | None,
    time_limit: float | None,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Show the tree of the source record TOPIC PARTITION OFFSET.

    Exit code 1: the record has been pending for longer than three message timeouts.
    """
    if (len(place) == 3) + (root is not None) + (dead_letter is not None) != 1 or len(place) not in (0, 3):
        raise click.UsageError("give TOPIC PARTITION OFFSET, or --root HEX, or --dead-letter OFFSET")
    cluster = Cluster(bootstrap, topology, settings)
    target = _target(cluster, place, root, dead_letter)
    since_ms = None if since is None else int(1000 * (world.wall_s() - since))
    limit_s = time_limit or LIMIT_S
    found = find_trace(cluster, target, since_ms=since_ms, limit_s=limit_s, payloads=payloads)
    after_s = stuck_after_s(cluster.topology)
    cluster.close()
    if style == "json":
        click.echo(json.dumps(to_json(found)))
    else:
        Console(highlight=False).print(in_text(found))
    if found.age_s is not None and found.age_s > after_s:
        context.exit(EXIT_STUCK)


def _target(cluster: Cluster, place: tuple[str, ...], root: str | None, name: str | None) -> TraceTarget:
    if root is not None:
        return target_of_root(cluster.topology, parse_root(root))
    if name is not None:
        found = read_dead_letter(cluster, *parse_dead_letter(name))
        return target_of_record(cluster.topology, found.topic, found.source_partition, found.source_offset)
    topic, partition, offset = place
    if not (is_offset(partition) and is_offset(offset)):
        raise click.BadParameter(f"{partition!r} and {offset!r} must be a partition and an offset")
    return target_of_record(cluster.topology, topic, int(partition), int(offset))


def parse_root(text: str) -> int:
    """Return a root id from its hexadecimal form.

    >>> parse_root("00000000000000ff"), parse_root("0xff")
    (255, 255)
    """
    if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]{1,16}", text):
        raise click.BadParameter(f"{text!r} is not a root id: up to 16 hexadecimal digits")
    return int(text, 16)


_COLORS = {"acked": "green", "done": "green", "open": "yellow", "failed": "red", "timed out": "red"}


def in_text(found: Trace) -> Tree:
    """Return the trace as a tree for a terminal."""
    place = f"{found.topic or found.spout}/{found.partition}/{found.offset}"
    age = f", {duration(found.age_s)} since its first emission here" if found.age_s is not None else ""
    offsets = "" if found.frontier is None else f" · frontier {found.frontier} · log end {found.log_end}"
    tree = Tree(Text.assemble((place, "bold"), f"  {found.state}{age}{offsets}"))
    if found.corrects:
        tree.add(Text(f"it corrects {printable(found.corrects)}"))
    _add_payload(tree, found.payload)
    for emission in found.emissions:
        _add_emission(tree, emission, found.name_of(emission))
    for each in found.dead_letters:
        text = f"dead letter {each.partition}/{each.offset} at {moment(each.time_ms)} after "
        closed = f"; corrected as {printable(each.corrected_as)}" if each.corrected_as else ""
        tree.add(Text(f"{text}{each.attempts} attempt(s): {printable(each.reason, LINES)}{closed}", "red"))
    for note in found.notes:
        tree.add(Text(f"note: {note}", "dim"))
    size = f"{found.searched_records:,} records, {found.searched_bytes / 1e6:,.1f} MB in {found.took_s:.1f} s"
    tree.add(Text(f"read {size}", "dim"))
    return tree


def _add_emission(tree: Tree, emission: TracedEmission, name: str) -> None:
    color = _COLORS.get(emission.state, "")
    about = f"  run {emission.run}, acker {emission.acker_partition}"
    branch = tree.add(Text.assemble(f"{name}  root {emission.root}{about}  ", (emission.state, color)))
    if emission.init is not None:
        branch.add(
            Text(f"{moment(emission.init.at.time_ms)} init by {emission.init.task}{_place(emission.init.at)}")
        )
    for found in emission.tuples[:MAX_TUPLES]:
        _add_tuple(branch, found)
    if (more := len(emission.tuples) - MAX_TUPLES) > 0:
        branch.add(Text(f"and {more} more tuples; --format json has them all", "dim"))
    for message in emission.messages[: 2 * MAX_TUPLES]:
        branch.add(_message(message))
    if emission.result is not None:
        result = emission.result
        details = "".join(f", {printable(part, LINES)}" for part in (result.task, result.reason) if part)
        by = f" by acker {result.acker}{_place(result.at)}"
        text = f"{moment(result.at.time_ms)} {result.kind}{details}{by}"
        branch.add(Text(text, color))
    branch.add(Text(emission.text, "italic"))


def _add_tuple(branch: Tree, found: TracedTuple) -> None:
    leaf = branch.add(Text(f"{moment(found.at.time_ms)} tuple{_place(found.at)}"))
    for reader in found.readers:
        behind = ""
        if reader.behind:
            behind = f", its group is {reader.behind} behind"
        leaf.add(
            Text.assemble(f"bolt {reader.bolt}: ", (reader.state, _COLORS.get(reader.state, "")), behind)
        )
    _add_payload(leaf, found.payload)


def _add_payload(branch: Tree, payload: RecordPayload | None) -> None:
    if payload is None:
        return
    if payload.missing:
        branch.add(Text(payload.missing, "dim"))
    for name, part in (("key", payload.key), ("value", payload.value)):
        if part is not None and (name == "value" or part.form != "null"):
            text = printable(part.text, LINES)
            branch.add(Text(f"{name}, {about(part)}" + (f": {text}" if text else "")))


def _message(message: ControlEntry) -> Text:
    reason = f": {printable(message.reason, LINES)}" if message.reason else ""
    color = "red" if message.kind == "fail" else ""
    by = f"{message.kind} by {printable(message.task)}"
    return Text(f"{moment(message.at.time_ms)} {by}{reason}{_place(message.at)}", color)


def _place(at: At) -> str:
    return f"  ({at.topic}/{at.partition}/{at.offset})"
