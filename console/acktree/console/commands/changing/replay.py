"""`acktree replay`: emits a range of source records again."""

import json

import click

from acktree.console.columns import printable
from acktree.console.commands.options import (
    PLAN_HEAD,
    bootstrap_option,
    client_settings_option,
    format_option,
)
from acktree.console.dead_letter_replay import DeadLetterPlan
from acktree.console.published import all_published
from acktree.console.replay import NotReplayable, ReplayPlan, Wanted, execute_replay, read_and_plan
from acktree.console.view.cluster import Cluster
from acktree.core.kafka.settings import Settings
from acktree.wire.control_records import Span


@click.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("first", metavar="FROM", type=click.IntRange(0))
@click.argument("following", metavar="TO", type=click.IntRange(0))
@click.option("--topology", metavar="NAME", help="The topology. Default: the one whose spout reads TOPIC.")
@click.option("--execute", is_flag=True, help="Execute the plan. Without it the plan is only printed.")
@format_option
@bootstrap_option
@client_settings_option
def replay(
    topic: str,
    partition: int,
    first: int,
    following: int,
    topology: str | None,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Emit the records of TOPIC PARTITION again, from offset FROM up to, but not including, offset TO.

    They go through the whole tree again, done or pending; no record is copied. The spout's driver
    executes the command within half a second, or at its next start.
    """
    name = topology or _topology_of(bootstrap, topic, settings)
    cluster = Cluster(bootstrap, name, settings)
    plan = read_and_plan(cluster, [Wanted(topic, partition, (Span(first, following),))], settings)
    cluster.close()
    carry_out(plan, execute, style, bootstrap, settings)


def carry_out(
    plan: ReplayPlan,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: Settings,
    of_dead_letters: DeadLetterPlan | None = None,
) -> None:
    """Print a plan and, where asked to, execute it."""
    written = execute_replay(bootstrap, plan, settings) if execute else None
    if style == "json":
        about = {} if of_dead_letters is None else of_dead_letters.to_json()
        click.echo(json.dumps({**plan.to_json(written), **about}))
        return
    head, refusals = (
        ([], []) if of_dead_letters is None else ([of_dead_letters.head()], of_dead_letters.refusals())
    )
    for line in (*([PLAN_HEAD] if written is None else []), *head, *plan.lines(), *refusals):
        click.echo(printable(line))
    if written is None:
        click.echo("nothing was changed; add --execute to do it", err=True)
    for command, offset in zip(plan.commands, written or (), strict=False):
        click.echo(
            f"written to {command.result_topic} at {offset}; a stopped driver executes it at its start, "
            f"if that is within {plan.kept_s:g} s (control_retention_s)"
        )


def _topology_of(bootstrap: str, topic: str, settings: Settings) -> str:
    found = all_published(bootstrap, settings)
    names = [
        published.name
        for published in found
        if any(topic in table.topics for table in published.spouts.values())
    ]
    if len(names) == 1:
        return names[0]
    if names:
        raise NotReplayable(f"topic {topic!r} is read by several topologies: --topology {' or '.join(names)}")
    raise NotReplayable(f"no topology on this cluster has a spout that reads topic {topic!r}")
