"""`acktree dev`: runs a file of stages and bolts as processes, with a broker if there is none."""

import time
from contextlib import ExitStack
from pathlib import Path

import click
from confluent_kafka.admin import NewTopic

from acktree.console.commands.options import client_settings_option
from acktree.console.demo.app_topology import AppPart, load_parts, topology_of
from acktree.console.demo.children import ChildProcess
from acktree.console.devbroker.broker import LocalBroker
from acktree.console.devbroker.owner import leaving_on_signals
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_admin
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import Settings
from acktree.core.temporary_folder import temporary_folder
from acktree.core.topology.publish import apply_topology

LOOK_INTERVAL_S = 0.2


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-b", "--bootstrap-server", "bootstrap", help="A running Kafka. Default: start one.")
@click.option("--topology", "name", metavar="NAME", help="Default: the name of the file.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="The number of partitions of new topics.",
)
@client_settings_option
def dev(
    file: Path, bootstrap: str | None, name: str | None, partitions: int, settings: dict[str, str]
) -> None:
    """Run all stages and bolts of FILE, for development, until Ctrl-C.

    The topology is what its @stage and @bolt functions read and emit. Missing topics are created,
    and one process runs for each part, plus an acker. Their output and logs appear here.
    """
    parts = load_parts(file)
    topology = topology_of(name or file.stem, parts)
    with leaving_on_signals(), ExitStack() as stack:
        if bootstrap is None:
            click.echo("starting a Kafka broker", err=True)
            bootstrap = stack.enter_context(LocalBroker()).bootstrap
        _create_sources(
            bootstrap,
            [topic for part in parts for topic in part.reads if part.is_stage],
            partitions,
            settings,
        )
        for line in apply_topology(bootstrap, topology, settings).lines():
            click.echo(line, err=True)
        home = stack.enter_context(temporary_folder("dev"))
        children = _children(home, file, bootstrap, topology.name, parts, settings)
        for child in children:
            stack.callback(child.stop)
            child.start()
        for child in children:
            child.wait_ready(lambda: _show(children))
        click.echo(f"ready: topology {topology.name} at {bootstrap}", err=True)
        while True:
            _show(children)
            for child in children:
                child.check_alive()
            time.sleep(LOOK_INTERVAL_S)


def _create_sources(bootstrap: str, topics: list[str], partitions: int, settings: Settings) -> None:
    admin = make_admin(bootstrap, settings)
    with clear_errors(bootstrap):
        known = admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
        missing = [topic for topic in dict.fromkeys(topics) if topic not in known]
        for topic in missing:
            admin.create_topics([NewTopic(topic, partitions)])[topic].result()
    for topic in missing:
        click.echo(f"create topic {topic} with {partitions} partition(s)", err=True)


def _children(
    home: Path, file: Path, bootstrap: str, topology: str, parts: list[AppPart], settings: Settings
) -> list[ChildProcess]:
    common = ["--topology", topology, "-b", bootstrap]
    for key, value in settings.items():
        common += ["-X", f"{key}={value}"]
    commands = {"acker": ["acker", "run", *common]}
    for part in parts:
        role, flag = ("spout", "--spout") if part.is_stage else ("bolt", "--bolt")
        commands[part.name] = [role, "run", part.place, flag, part.name, *common]
    folder = file.resolve().parent
    return [
        ChildProcess(name, command, folder, home / f"{name}.log", {"PYTHONUNBUFFERED": "1"})
        for name, command in commands.items()
    ]


def _show(children: list[ChildProcess]) -> None:
    """Print what the processes have written since."""
    for child in children:
        for line in child.new_lines():
            click.echo(f"{child.name}: {line}", err=True)
