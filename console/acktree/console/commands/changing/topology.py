"""`acktree topology apply`, `diff`, `show` and `set`: publish a topology, and read the published one."""

import json
from pathlib import Path

import click

from acktree.console.columns import columns
from acktree.console.commands.options import (
    PLAN_HEAD,
    bootstrap_option,
    client_settings_option,
    format_option,
)
from acktree.console.published import all_published, refuse_shared_topics
from acktree.core.errors import NotAuthorized, UnknownTopology
from acktree.core.topology.file import BoltTable, SpoutTable, load_topology, with_settings
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import Published, read_history


@click.group()
def topology() -> None:
    """Publish and show topologies."""


@topology.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@format_option
@bootstrap_option
@client_settings_option
def apply(file: Path, dry_run: bool, style: str, bootstrap: str, settings: dict[str, str]) -> None:
    """Apply the topology in FILE to the cluster, and print the changes.

    Creates missing topics, except source topics, and publishes FILE as the next version if it differs from
    the published one. Refuses a topology that emits to the same topic as another one.
    """
    wanted = load_topology(file)
    try:
        refuse_shared_topics(wanted, bootstrap, settings)
    except NotAuthorized as error:
        click.echo(
            f"warning: cannot check whether another topology emits to the same topics: {error}", err=True
        )
    plan = apply_topology(bootstrap, wanted, settings, dry_run=dry_run)
    if style == "json":
        version = plan.publish or plan.current
        about = {"topology": wanted.name, "version": version.version if version else None}
        click.echo(
            json.dumps({**about, "dry_run": dry_run, "changes": plan.lines(), "warnings": plan.warnings})
        )
        return
    for line in plan.lines():
        click.echo(line)
    for warning in plan.warnings:
        click.echo(f"warning: {warning}", err=True)
    if not plan.lines() and plan.current:
        click.echo(
            f"nothing to do: version {plan.current.version} of topology {wanted.name} has the same content"
        )
    if dry_run:
        click.echo("dry run: nothing was changed", err=True)


@topology.command()
@click.option("--topology", "name", metavar="NAME", help="The topology to show. Default: all.")
@format_option
@bootstrap_option
@client_settings_option
def show(name: str | None, style: str, bootstrap: str, settings: dict[str, str]) -> None:
    """Show the newest version of one topology, or of all on the cluster.

    JSON has one line per topology, with the defaults of omitted keys.
    """
    if name is not None:
        found = [read_history(bootstrap, name, settings).latest]
    else:
        found = all_published(bootstrap, settings)
    if style == "json":
        for published in found:
            click.echo(published.model_dump_json())
    else:
        click.echo(_in_full(found[0]) if name else _in_short(found))


@topology.command()
@click.argument("file", type=click.Path(path_type=Path))
@format_option
@bootstrap_option
@client_settings_option
@click.pass_context
def diff(context: click.Context, file: Path, style: str, bootstrap: str, settings: dict[str, str]) -> None:
    """Show the differences between the topology in FILE and the published one.

    Exit code 0: no difference. 1: a difference, or nothing is published yet.
    """
    wanted = load_topology(file)
    try:
        current: Published | None = read_history(bootstrap, wanted.name, settings).latest
    except UnknownTopology:
        current = None
    found = differences(current.file().model_dump() if current else {}, wanted.model_dump())
    version = current.version if current else None
    if style == "json":
        changes = [{"key": key, "published": old, "file": new} for key, old, new in found]
        click.echo(json.dumps({"topology": wanted.name, "version": version, "changes": changes}))
    elif found:
        head = ("KEY", f"VERSION {version}" if version else "PUBLISHED", "FILE")
        click.echo(columns(head, [(key, _shown(old), _shown(new)) for key, old, new in found]))
    else:
        click.echo(f"no difference: version {version} of topology {wanted.name} has the same content")
    if found:
        context.exit(1)


@topology.command("set")
@click.argument("name", metavar="TOPOLOGY")
@click.argument("changes", metavar="KEY=VALUE", nargs=-1, required=True)
@click.option("--spout", metavar="NAME", help="Change this spout's settings.")
@click.option("--bolt", metavar="NAME", help="Change this bolt's settings.")
@click.option("--execute", is_flag=True, help="Execute the plan. Without it the plan is only printed.")
@format_option
@bootstrap_option
@client_settings_option
def set_(
    name: str,
    changes: tuple[str, ...],
    spout: str | None,
    bolt: str | None,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Change settings of the published TOPOLOGY, as its next version; running processes follow.

    Values are written as in the topology file. Change the file as well: the next `apply` publishes it.
    """
    if spout and bolt:
        raise click.UsageError("give --spout or --bolt, not both")
    place = ("spouts", spout) if spout else ("bolts", bolt) if bolt else ()
    published = read_history(bootstrap, name, settings).latest
    current = published.file()
    wanted = with_settings(current, place, changes)
    plan = apply_topology(bootstrap, wanted, settings, dry_run=not execute, based_on=published.version)
    found = differences(current.model_dump(), wanted.model_dump())
    if style == "json":
        changed = [{"key": key, "before": old, "after": new} for key, old, new in found]
        about = {"topology": name, "version": plan.publish.version if plan.publish else None}
        click.echo(json.dumps({**about, "executed": execute, "settings": changed, "changes": plan.lines()}))
        return
    if not execute:
        click.echo(PLAN_HEAD)
    for key, old, new in found:
        click.echo(f"{key}: {_shown(old) or 'unset'} -> {_shown(new) or 'unset'}")
    for line in plan.lines() or [f"nothing to do: topology {name} already has these settings"]:
        click.echo(line)
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


def differences(old: object, new: object, place: str = "") -> list[tuple[str, object, object]]:
    """Return (key, old, new) of every value that differs; None stands for a key that is not there.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3, "d": 4}})
    [('b.c', 2, 3), ('b.d', None, 4)]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in dict.fromkeys((*old, *new)):
            found += differences(old.get(key), new.get(key), f"{place}.{key}" if place else str(key))
        return found
    return [] if old == new else [(place, old, new)]


def _shown(value: object) -> str:
    return "" if value is None else json.dumps(value)


def _in_short(found: list[Published]) -> str:
    head = ("TOPOLOGY", "VERSION", "ACKERS", "SPOUTS", "BOLTS")
    return columns(
        head,
        [
            (
                published.name,
                published.version,
                published.ackers,
                ",".join(published.spouts),
                ",".join(published.bolts),
            )
            for published in found
        ],
    )


def _in_full(published: Published) -> str:
    timeouts = (published.message_timeout_s, published.orphan_timeout_s, published.control_retention_s)
    head = ("TOPOLOGY", "VERSION", "ACKERS", "MESSAGE_TIMEOUT_S", "ORPHAN_TIMEOUT_S", "CONTROL_RETENTION_S")
    spouts = [
        (name, ",".join(spout.topics), ",".join(spout.emits), spout.tasks, len(published.slots_of(name)))
        for name, spout in published.spouts.items()
    ]
    bolts = [
        (name, ",".join(bolt.reads), ",".join(bolt.emits), "yes" if bolt.exactly_once else "no")
        for name, bolt in published.bolts.items()
    ]
    tables: dict[str, SpoutTable | BoltTable] = {**published.spouts, **published.bolts}
    options = [
        (name, key, _shown(value))
        for name, table in tables.items()
        for key, value in table.spark.model_dump(exclude_defaults=True).items()
    ]
    return "\n\n".join(
        (
            columns(
                head,
                [
                    (
                        published.name,
                        published.version,
                        published.ackers,
                        *(f"{seconds:g}" for seconds in timeouts),
                    )
                ],
            ),
            columns(("SPOUT", "TOPICS", "EMITS", "TASKS", "SLOTS"), spouts),
            columns(("BOLT", "READS", "EMITS", "EXACTLY_ONCE"), bolts),
            *([columns(("COMPONENT", "SPARK_OPTION", "VALUE"), options)] if options else []),
        )
    )
