"""`acktree bolt run`: a bolt written in Python, as one member of its consumer group."""

import logging
import signal
import sys

import click

from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    metrics_options,
    topology_option,
)
from acktree.console.process_metrics import serve_process
from acktree.producers.loading import make_handler
from acktree.producers.worker.bolt_kinds import BOLTS
from acktree.producers.worker.gc_tuning import collect_rarely
from acktree.producers.worker.loop import Worker
from acktree.schemas.clients import make_admin


@click.group()
def bolt() -> None:
    """Run a bolt written in Python."""


@bolt.command()
@click.argument("handler", metavar="MODULE:NAME")
@bootstrap_option
@topology_option
@click.option("--bolt", "name", metavar="NAME", help="Its name in the topology. Default: as its class says.")
@client_settings_option
@metrics_options
def run(
    handler: str,
    bootstrap: str,
    topology: str,
    name: str | None,
    settings: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run MODULE:NAME, a Bolt, BasicBolt, BatchBolt or AsyncBolt class or a function that returns one.

    The current folder is searched for MODULE. Start the command several times to share the work.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    made = make_handler(handler, BOLTS, "execute")
    make_admin(bootstrap, settings)
    worker = Worker(
        bootstrap,
        topology,
        made,
        name=name,
        user=settings,
        ready=lambda text: click.echo(text, err=True),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    serve_process(topology, lambda: worker.reported, metrics_port, metrics_host)
    collect_rarely()
    worker.run()
