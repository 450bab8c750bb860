"""`acktree spout run`: one task of a spout written in Python."""

from collections.abc import Callable
from functools import partial

import click

from acktree.console.commands.running.role import role_command
from acktree.producers.loading import make_handler
from acktree.producers.spout import Spout
from acktree.producers.spouts.spout_loop import SpoutWorker


@click.group()
def spout() -> None:
    """Run a spout written in Python."""


@spout.command()
@click.argument("handler", metavar="MODULE:NAME")
@click.option("--spout", "name", metavar="NAME", help="Its name in the topology. Default: as its class says.")
@click.option("--task", default=0, show_default=True, help="Which of the spout's tasks, from 0.")
@role_command
def run(handler: str, name: str | None, task: int) -> Callable[..., SpoutWorker]:
    """Run MODULE:NAME, a Spout class or a function that returns one, as one task of a spout without topics.

    The current folder is searched for MODULE. Run one process per task; a second one of a task takes it over.
    """
    return partial(SpoutWorker, spout=make_handler(handler, (Spout,), "next_tuple"), task=task, name=name)
