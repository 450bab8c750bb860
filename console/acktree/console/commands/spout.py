"""`acktree spout run`: one task of a spout written in Python."""

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
from acktree.producers.spout import Spout
from acktree.producers.worker.spout_loop import SpoutWorker
from acktree.schemas.clients import make_admin
from acktree.schemas.user_code import clear_user_errors


@click.group()
def spout() -> None:
    """Run a spout written in Python."""


@spout.command()
@click.argument("handler", metavar="MODULE:NAME")
@bootstrap_option
@topology_option
@click.option("--spout", "name", metavar="NAME", help="Its name in the topology. Default: as its class says.")
@click.option("--task", default=0, show_default=True, help="Which of the spout's tasks, from 0.")
@client_settings_option
@metrics_options
@stuck_after_option
def run(
    handler: str,
    bootstrap: str,
    topology: str,
    name: str | None,
    task: int,
    settings: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
    stuck_after: float | None,
) -> None:
    """Run MODULE:NAME, a Spout class or a function that returns one, as one task of a spout without topics.

    The current folder is searched for MODULE. Run one process per task; a second one of a task takes it over.
    """
    log_to_stderr()
    made = make_handler(handler, (Spout,), "next_tuple")
    make_admin(bootstrap, settings)
    worker = SpoutWorker(
        bootstrap,
        topology,
        made,
        task=task,
        name=name,
        user=settings,
        ready=lambda text: click.echo(text, err=True),
        stuck_after_s=stuck_after,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    serve_process(topology, lambda: worker.reports.newest, worker.progress, metrics_port, metrics_host)
    with clear_user_errors(f"spout {worker.name}"):
        worker.run()
