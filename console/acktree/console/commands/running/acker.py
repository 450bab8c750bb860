"""`acktree acker run`: runs one member of a topology's acker group."""

import click

from acktree.acker.service import Acker
from acktree.console.commands.running.role import role_command


@click.group()
def acker() -> None:
    """Fold acks and send results to spouts."""


@acker.command()
@role_command
def run() -> type[Acker]:
    """Run an acker until SIGTERM or SIGINT.

    Start the command several times to divide the partitions; an acker without a partition is a standby.
    """
    return Acker
