"""`acktree rewind`: moves a spout back to an earlier offset, from which it emits again."""

import json

import click

from acktree.console.commands.options import (
    PLAN_HEAD,
    bootstrap_option,
    client_settings_option,
    format_option,
    is_offset,
    parse_time_ms,
)
from acktree.console.rewind import execute_rewind, places_of, read_and_plan_rewind
from acktree.console.view.cluster import Cluster, Place

EARLIEST = "earliest"


@click.command()
@click.argument("topology", metavar="TOPOLOGY")
@click.option("--spout", metavar="NAME", required=True, help="The spout to rewind.")
@click.option(
    "--to",
    "target",
    metavar="OFFSET|TIME|earliest",
    required=True,
    help="An offset; a time: 2h (ago), or 2025-01-31T12:00, local unless it has a zone; or earliest.",
)
@click.option(
    "--partition", "named", metavar="TOPIC/N", multiple=True, help="Only this one; repeatable. Default: all."
)
@click.option("--execute", is_flag=True, help="Execute the plan. Without it the plan is only printed.")
@format_option
@bootstrap_option
@client_settings_option
def rewind(
    topology: str,
    spout: str,
    target: str,
    named: tuple[str, ...],
    execute: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Move a spout of TOPOLOGY back: all records from there on are emitted again, done or not.

    A partition only moves back, never forward. A running spout follows within half a second, a stopped one at
    its start. Kafka's own kafka-consumer-groups --reset-offsets does the same.
    """
    cluster = Cluster(bootstrap, topology, settings)
    places = places_of(cluster.topology, spout, [parse_place(text) for text in named])
    if target == EARLIEST:
        targets = cluster.starts(places)
    elif is_offset(target):
        targets = dict.fromkeys(places, int(target))
    else:
        targets = cluster.at_time(places, parse_time_ms(target))
    plan = read_and_plan_rewind(cluster, spout, targets)
    cluster.close()
    if execute:
        execute_rewind(bootstrap, plan, settings)
    if style == "json":
        click.echo(json.dumps(plan.to_json(execute)))
        return
    for line in (*([] if execute else [PLAN_HEAD]), *plan.lines()):
        click.echo(line)
    if execute:
        click.echo(f"committed for group {plan.group}")
    else:
        click.echo("nothing was changed; add --execute to do it", err=True)


def parse_place(text: str) -> Place:
    """Return topic and partition.

    >>> parse_place("lines/7")
    ('lines', 7)
    """
    topic, _, partition = text.rpartition("/")
    if not (topic and is_offset(partition)):
        raise click.BadParameter(f"{text!r} is not TOPIC/PARTITION")
    return topic, int(partition)
