"""`acktree topics create`: creates the topics that a topology needs, without publishing it."""

import json
from pathlib import Path

import click

from acktree.console.commands.options import bootstrap_option, client_settings_option, format_option
from acktree.core.topology.file import load_topology
from acktree.core.topology.publish import create_topics


@click.group()
def topics() -> None:
    """Create the topics of a topology."""


@topics.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@format_option
@bootstrap_option
@client_settings_option
def create(file: Path, dry_run: bool, style: str, bootstrap: str, settings: dict[str, str]) -> None:
    """Create the topics of FILE: control topics, and those that its spouts and bolts emit to.

    Source topics are never created. For operators who may create topics but not publish.
    """
    plan = create_topics(bootstrap, load_topology(file), settings, dry_run=dry_run)
    lines = plan.topic_lines()
    if style == "json":
        click.echo(json.dumps({"dry_run": dry_run, "changes": lines, "warnings": plan.warnings}))
        return
    for line in lines:
        click.echo(line)
    for warning in plan.warnings:
        click.echo(f"warning: {warning}", err=True)
    if not lines:
        click.echo("nothing to do: every topic exists")
    if dry_run:
        click.echo("dry run: nothing was changed", err=True)
