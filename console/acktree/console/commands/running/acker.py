"""`acktree acker run`: runs one member of a topology's acker group."""

import click

from acktree.acker.service import Acker
from acktree.console.commands.running.role import role_command


@click.group()
def acker() -> None:
    """Run ackers."""


@acker.command()
@role_command
def run() -> type[Acker]:
    """Run an acker until SIGTERM or SIGINT.

    All processes of a topology divide its partitions; one without a partition is a standby.
    """
    return Acker
