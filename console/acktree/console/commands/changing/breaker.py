"""`acktree breaker close`: closes the breakers of spouts by hand."""

import click

from acktree.console.breaker import execute_close, plan_close
from acktree.console.commands.changing.flow import REPORTED_SPAN_S, show_plan
from acktree.console.commands.options import bootstrap_option, client_settings_option, format_option
from acktree.console.view.breakers import breaker_of
from acktree.console.view.cluster import Cluster
from acktree.console.view.report_log import read_reports
from acktree.console.view.reports import Reports
from acktree.core import world


@click.group()
def breaker() -> None:
    """Close breakers of spouts; `acktree describe` shows them."""


@breaker.command()
@click.argument("topology")
@click.option("--spout", metavar="NAME", help="One spout. Default: all that have a breaker.")
@click.option("--execute", is_flag=True, help="Carry out the plan. Without this it is only printed.")
@format_option
@bootstrap_option
@client_settings_option
def close(
    topology: str, spout: str | None, execute: bool, style: str, bootstrap: str, settings: dict[str, str]
) -> None:
    """Close the breakers of TOPOLOGY's spouts: they emit replays and new records again.

    A breaker closes by itself when a probe is done. One that was closed by hand opens again if failures
    continue, and no record is dead-lettered meanwhile.
    """
    cluster, reports = Cluster(bootstrap, topology, settings), Reports()
    read_reports(cluster, reports, REPORTED_SPAN_S)
    published, now_ms = cluster.topology, world.wall_ms()
    cluster.close()
    found = {name: breaker_of(reports.alive("spout", name, now_ms)) for name in published.spouts}
    plan = plan_close(published, spout, found)
    written = execute_close(bootstrap, plan, published, settings) if execute else None
    show_plan(plan, written, style)
