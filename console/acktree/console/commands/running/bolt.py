"""`acktree bolt run`: runs a bolt written in Python, as one member of its consumer group."""

from collections.abc import Callable
from functools import partial

import click

from acktree.console.commands.running.role import role_command
from acktree.producers.loading import make_handler
from acktree.producers.worker.executing.bolt_kinds import BOLTS
from acktree.producers.worker.gc_tuning import collect_rarely
from acktree.producers.worker.loop import Worker


@click.group()
def bolt() -> None:
    """Run a bolt written in Python."""


@bolt.command()
@click.argument("handler", metavar="MODULE:NAME")
@click.option(
    "--bolt", "name", metavar="NAME", help="The bolt's name in the topology. Default: that of its class."
)
@role_command
def run(handler: str, name: str | None) -> Callable[..., Worker]:
    """Run MODULE:NAME, a bolt class (such as a BasicBolt), a @bolt function, or a function that returns a
    bolt.

    The current folder is searched for MODULE. Several processes divide the partitions.
    """
    made = make_handler(handler, BOLTS, "execute")
    collect_rarely()
    return partial(Worker, bolt=made, name=name)
