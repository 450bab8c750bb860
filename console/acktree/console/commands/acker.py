"""`acktree acker run`: one member of a topology's acker group."""

import signal
import sys

import click

from acktree.acker.service import Acker
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    log_to_stderr,
    metrics_options,
    stuck_after_option,
    topology_option,
)
from acktree.console.process_metrics import serve_process


@click.group()
def acker() -> None:
    """Fold acks, send results to spouts."""


@acker.command()
@bootstrap_option
@topology_option
@client_settings_option
@metrics_options
@stuck_after_option
def run(
    bootstrap: str,
    topology: str,
    settings: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
    stuck_after: float | None,
) -> None:
    """Run an acker until SIGTERM or SIGINT.

    Start the command several times to divide the partitions; one more than there are partitions is a standby.
    """
    log_to_stderr()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    member = Acker(
        bootstrap,
        topology,
        user=settings,
        ready=lambda text: click.echo(text, err=True),
        stuck_after_s=stuck_after,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: member.stop())
    serve_process(topology, lambda: member.reports.newest, member.progress, metrics_port, metrics_host)
    member.run()
