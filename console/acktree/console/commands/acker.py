"""`acktree acker run`: one member of a topology's acker group."""

import logging
import signal
import sys

import click

from acktree.acker.metrics import serve_metrics
from acktree.acker.service import Acker
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    metrics_options,
    topology_option,
)


@click.group()
def acker() -> None:
    """Fold acks, send results to spouts."""


@acker.command()
@bootstrap_option
@topology_option
@client_settings_option
@metrics_options
def run(
    bootstrap: str, topology: str, settings: dict[str, str], metrics_port: int | None, metrics_host: str
) -> None:
    """Run an acker until SIGTERM or SIGINT.

    Start the command several times to divide the partitions; one more than there are partitions is a standby.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    member = Acker(bootstrap, topology, user=settings, ready=lambda text: click.echo(text, err=True))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: member.stop())
    if metrics_port is not None:
        served = serve_metrics(lambda: member.reported, metrics_port, metrics_host)
        click.echo(f"metrics {served.url}", err=True)
    member.run()
