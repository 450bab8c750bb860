"""`acktree pause`, `resume` and `drain`: stop and start spouts' emissions; durable, and applied live."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import click

from acktree.console.columns import printable
from acktree.console.commands.options import (
    PLAN_HEAD,
    bootstrap_option,
    client_settings_option,
    duration_option,
    format_option,
)
from acktree.console.flow import FlowPlan, draining, execute_flow, plan_flow
from acktree.console.view.cluster import Cluster
from acktree.console.view.report_log import read_reports
from acktree.console.view.reports import Reports
from acktree.core import world
from acktree.core.kafka.settings import Settings
from acktree.core.reports.stats import STATS_INTERVAL_S
from acktree.core.topology.flow import Flow
from acktree.core.topology.registry import Published, read_history

EXIT_NOT_DRAINED = 1
REPORTED_SPAN_S = 30.0
"""How far back a drain looks for the last report of each task."""


def _flow_options(command: Callable[..., None]) -> Callable[..., None]:
    for add in (
        client_settings_option,
        bootstrap_option,
        format_option,
        click.option(
            "--execute", is_flag=True, help="Execute the plan. Without it the plan is only printed."
        ),
        click.option("--spout", metavar="NAME", help="One spout. Default: all of the topology."),
        click.argument("topology"),
    ):
        command = add(command)
    return command


@click.command()
@_flow_options
def pause(
    topology: str, spout: str | None, execute: bool, style: str, bootstrap: str, settings: dict[str, str]
) -> None:
    """Stop the spouts of TOPOLOGY: they emit neither new records nor replays.

    Pending tuples are processed, and done records committed. Takes effect within a few seconds and lasts
    until `acktree resume`, across restarts.
    """
    _carry_out(Flow.PAUSED, topology, spout, execute, style, bootstrap, settings)


@click.command()
@_flow_options
def resume(
    topology: str, spout: str | None, execute: bool, style: str, bootstrap: str, settings: dict[str, str]
) -> None:
    """Let the spouts of TOPOLOGY emit again after `acktree pause` or `acktree drain`."""
    _carry_out(Flow.RUNNING, topology, spout, execute, style, bootstrap, settings)


@click.command()
@duration_option("--timeout", "Give up waiting after this time, with exit code 1. Default: never.")
@_flow_options
@click.pass_context
def drain(
    context: click.Context,
    topology: str,
    spout: str | None,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
    timeout: float | None,
) -> None:
    """Stop new records of TOPOLOGY's spouts, wait until nothing is pending, and exit.

    Replays continue until each record is done or a dead letter. The spouts stay stopped until `acktree
    resume`.
    """
    plan, published, written = _carry_out(Flow.DRAINING, topology, spout, execute, style, bootstrap, settings)
    if written is not None and not _await_drained(published, written, timeout, bootstrap, settings):
        click.echo(f"topology {plan.topology} is not drained; it continues draining", err=True)
        context.exit(EXIT_NOT_DRAINED)


def _carry_out(
    flow: Flow,
    topology: str,
    spout: str | None,
    execute: bool,
    style: str,
    bootstrap: str,
    settings: Settings,
) -> tuple[FlowPlan, Published, dict[str, int] | None]:
    history = read_history(bootstrap, topology, settings)
    plan = plan_flow(history, spout, flow)
    written = execute_flow(bootstrap, plan, history.latest, settings) if execute else None
    show_plan(plan, written, style)
    return plan, history.latest, written


class Plan(Protocol):
    """The changes that an operator plans to a topology's spouts."""

    def lines(self) -> list[str]: ...
    def to_json(self, written: Mapping[str, int] | None = None) -> dict[str, Any]: ...


def show_plan(plan: Plan, written: Mapping[str, int] | None, style: str) -> None:
    """Print a plan, with the offsets by spout where it was carried out."""
    if style == "json":
        click.echo(json.dumps(plan.to_json(written)))
    else:
        for line in (*([PLAN_HEAD] if written is None else []), *plan.lines()):
            click.echo(printable(line))
    if written is None:
        click.echo("nothing was changed; add --execute to do it", err=True)


def _await_drained(
    published: Published,
    written: Mapping[str, int],
    timeout_s: float | None,
    bootstrap: str,
    settings: Settings,
) -> bool:
    """Wait until all spouts are drained; return whether they are. Says on stderr what changes."""
    cluster = Cluster(bootstrap, published.name, settings)
    deadline_s = None if timeout_s is None else world.monotonic_s() + timeout_s
    said: list[str] = []
    try:
        while True:
            reports = Reports()
            cluster.refresh()
            if cluster.topology.spouts.keys() >= written.keys():
                published = cluster.topology
            read_reports(cluster, reports, REPORTED_SPAN_S)
            found = list(draining(reports, published, written, world.wall_ms()))
            if (lines := [each.line() for each in found]) != said:
                said = lines
                for line in lines:
                    click.echo(printable(line), err=True)
            if all(each.is_drained for each in found):
                return True
            if deadline_s is not None and world.monotonic_s() >= deadline_s:
                return False
            world.sleep(STATS_INTERVAL_S / 2)
    finally:
        cluster.close()
