"""`acktree bolt run`: a bolt written in Python, as one member of its consumer group."""

import signal

import click

from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    log_to_stderr,
    metrics_options,
    stuck_after_option,
    topology_option,
)
from acktree.console.process_metrics import serve_process
from acktree.producers.loading import make_handler
from acktree.producers.worker.bolt_kinds import BOLTS
from acktree.producers.worker.gc_tuning import collect_rarely
from acktree.producers.worker.loop import Worker
from acktree.schemas.clients import make_admin
from acktree.schemas.user_code import clear_user_errors


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
@stuck_after_option
def run(
    handler: str,
    bootstrap: str,
    topology: str,
    name: str | None,
    settings: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
    stuck_after: float | None,
) -> None:
    """Run MODULE:NAME, a class of bolt (such as a BasicBolt) or a function that returns one.

    Or a function that is a bolt by @bolt.

    The current folder is searched for MODULE. Start the command several times to share the work.
    """
    log_to_stderr()
    made = make_handler(handler, BOLTS, "execute")
    make_admin(bootstrap, settings)
    worker = Worker(
        bootstrap,
        topology,
        made,
        name=name,
        user=settings,
        ready=lambda text: click.echo(text, err=True),
        stuck_after_s=stuck_after,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    serve_process(topology, lambda: worker.reports.newest, worker.progress, metrics_port, metrics_host)
    collect_rarely()
    with clear_user_errors(f"bolt {worker.name}"):
        worker.run()
