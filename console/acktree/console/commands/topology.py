"""`acktree topology apply` and `show`: publish a topology file, and read what is published."""

from pathlib import Path

import click

from acktree.console.columns import columns
from acktree.console.commands.options import bootstrap_option, client_settings_option
from acktree.schemas.clients import BROKER_TIMEOUT_S, Settings, clear_errors, make_admin
from acktree.schemas.errors import UnknownTopology
from acktree.schemas.publish import apply_topology
from acktree.schemas.registry import Published, read_history
from acktree.schemas.topology import load_topology, registry_topic


@click.group()
def topology() -> None:
    """Publish and show topologies."""


@topology.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@bootstrap_option
@client_settings_option
def apply(file: Path, dry_run: bool, bootstrap: str, settings: dict[str, str]) -> None:
    """Bring the cluster to the topology in FILE.

    Creates the topics it needs, never its source topics, and publishes it as the next version. Prints what it
    did. Where the published version says the same, nothing is published.
    """
    wanted = load_topology(file)
    plan = apply_topology(bootstrap, wanted, settings, dry_run=dry_run)
    for line in plan.lines():
        click.echo(line)
    if not plan.lines() and plan.current:
        click.echo(f"nothing to do: version {plan.current.version} of topology {wanted.name} says the same")
    if dry_run:
        click.echo("dry run: nothing was changed", err=True)


@topology.command()
@click.option("--topology", "name", metavar="NAME", help="The topology to show; all of them by default.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@bootstrap_option
@client_settings_option
def show(name: str | None, style: str, bootstrap: str, settings: dict[str, str]) -> None:
    """Show the newest version of one topology, or of all on the cluster.

    As JSON it is one line a topology, exactly what the registry topic holds.
    """
    if name is not None:
        found = [read_history(bootstrap, name, settings).latest]
    else:
        found = _all_published(bootstrap, settings)
    if style == "json":
        for published in found:
            click.echo(published.model_dump_json())
    else:
        click.echo(_in_full(found[0]) if name else _in_short(found))


def _all_published(bootstrap: str, settings: Settings) -> list[Published]:
    admin = make_admin(bootstrap, settings)
    with clear_errors(bootstrap):
        topics = admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
    ending = registry_topic("")
    found = []
    for topic in sorted(topic for topic in topics if topic.endswith(ending)):
        try:
            found.append(read_history(bootstrap, topic.removesuffix(ending), settings).latest)
        except UnknownTopology:  # a topic of somebody else that happens to end like ours
            continue
    return found


def _in_short(found: list[Published]) -> str:
    head = ("TOPOLOGY", "VERSION", "ACKERS", "SPOUTS", "BOLTS")
    return columns(
        head,
        [
            (each.name, each.version, each.ackers, ",".join(each.spouts), ",".join(each.bolts))
            for each in found
        ],
    )


def _in_full(each: Published) -> str:
    timeouts = (each.message_timeout_s, each.orphan_timeout_s, each.control_retention_s)
    head = ("TOPOLOGY", "VERSION", "ACKERS", "MESSAGE_TIMEOUT_S", "ORPHAN_TIMEOUT_S", "CONTROL_RETENTION_S")
    spouts = [
        (name, ",".join(spout.topics), ",".join(spout.emits), spout.tasks, len(each.slots_of(name)))
        for name, spout in each.spouts.items()
    ]
    bolts = [
        (name, ",".join(bolt.reads), ",".join(bolt.emits), "yes" if bolt.exactly_once else "no")
        for name, bolt in each.bolts.items()
    ]
    return "\n\n".join(
        (
            columns(
                head, [(each.name, each.version, each.ackers, *(f"{seconds:g}" for seconds in timeouts))]
            ),
            columns(("SPOUT", "TOPICS", "EMITS", "TASKS", "SLOTS"), spouts),
            columns(("BOLT", "READS", "EMITS", "EXACTLY_ONCE"), bolts),
        )
    )
