"""`acktree spout run`: runs a spout written in Python, or the Python stage of a spout that reads topics."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import click

from acktree.console.commands.options import parse_settings
from acktree.console.commands.running.role import role_command
from acktree.console.spark_reports import refuse_spark
from acktree.core.kafka.settings import Settings
from acktree.producers.bolt import AnyBolt
from acktree.producers.loading import make_handler
from acktree.producers.spout import Spout
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.stages.stage_worker import StageWorker, parse_stage_options
from acktree.producers.worker.executing.bolt_kinds import BOLTS
from acktree.producers.worker.gc_tuning import collect_rarely

KINDS: tuple[type[Any], ...] = (Spout, *BOLTS)


@click.group()
def spout() -> None:
    """Run a spout, or the stage of one, written in Python."""


@spout.command()
@click.argument("handler", metavar="MODULE:NAME")
@click.option(
    "--spout",
    "name",
    metavar="NAME",
    help="The spout's name in the topology. Default: the name that its class declares.",
)
@click.option("--task", type=int, help="For a Spout class: the number of the task, from 0.")
@click.option(
    "--option",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    help="For a stage: startingOffsets=latest, failOnDataLoss=false or allowSkip=true; repeatable.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="For a stage: take the spout over from a running Spark driver, which then stops.",
)
@role_command
def run(
    handler: str, name: str | None, task: int | None, given: tuple[str, ...], take_over: bool
) -> Callable[..., SpoutWorker | StageWorker]:
    """Run MODULE:NAME, a Spout class or a stage, or a function that returns one.

    A stage is a @stage function or a bolt class: it makes tuples of the records of a spout's topics. Its
    processes, up to one per task, divide the tasks. While a driver in Spark runs the spout, a stage needs
    --take-over. A Spout class needs one process per task.

    The current folder is searched for MODULE.
    """
    made: Spout | AnyBolt = make_handler(handler, KINDS)
    if isinstance(made, Spout):
        if given or take_over:
            option = "--option" if given else "--take-over"
            raise click.UsageError(f"{option} is for the stage of a spout that reads topics")
        return partial(SpoutWorker, spout=made, task=task or 0, name=name)
    if task is not None:
        raise click.UsageError(
            "--task is for a Spout class: the processes of a stage divide the tasks of its spout among "
            "themselves"
        )
    collect_rarely()
    options: Mapping[str, object] = parse_stage_options(parse_settings(given))
    first = [made]

    def make_bolt() -> AnyBolt:
        return first.pop() if first else cast(AnyBolt, make_handler(handler, KINDS))

    return partial(_make_stage, take_over, stage=make_bolt, name=name, options=options)


def _make_stage(
    take_over: bool, bootstrap: str, topology: str, *, user: Settings, **more: Any
) -> StageWorker:
    """Return the process of a stage. Raises RunBySpark."""
    made = StageWorker(bootstrap, topology, user=user, **more)
    if not take_over:
        refuse_spark(
            bootstrap, topology, made.name, user, lambda text: click.echo(f"warning: {text}", err=True)
        )
    return made
