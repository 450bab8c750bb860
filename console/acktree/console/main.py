"""The command line `acktree`: noun, verb, Kafka's option names.

A command's module is imported when that command runs, so `acktree broker` needs neither Spark nor numba and
`acktree --help` nothing at all. Every AcktreeError ends here, as one sentence on stderr and exit code 2.
"""

from importlib import import_module
from typing import Any, NamedTuple

import click

from acktree.schemas.errors import AcktreeError

EXIT_ERROR = 2


class Command(NamedTuple):
    """Where a command is (`module:attribute`), its line in --help, and the extra that it needs installed."""

    target: str
    summary: str
    extra: str | None = None


COMMANDS = {
    "acker": Command("acktree.console.commands.acker:acker", "Fold acks, tell spouts what is done.", "acker"),
    "bench": Command("acktree.console.commands.bench:bench", "Measure this machine.", "acker"),
    "bolt": Command("acktree.console.commands.bolt:bolt", "Run a bolt written in Python."),
    "broker": Command("acktree.console.commands.broker:broker", "Run a Kafka for development.", "broker"),
    "demo": Command("acktree.console.commands.demo:demo", "Run a whole topology here and watch it.", "spark"),
    "spark": Command("acktree.console.commands.spark:spark", "Run a Spark stage of a topology.", "spark"),
    "spout": Command("acktree.console.commands.spout:spout", "Run a spout written in Python."),
    "topology": Command("acktree.console.commands.topology:topology", "Publish and show topologies."),
}


class MissingExtra(AcktreeError):
    """The command needs a package that is not installed."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = COMMANDS.get(cmd_name)
        return load(cmd_name, command) if command else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AcktreeError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(EXIT_ERROR)


def load(name: str, command: Command) -> click.Command:
    """Import a command. Raises MissingExtra."""
    module, attribute = command.target.split(":")
    try:
        loaded = getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        if command.extra is None or (missing.name or "").split(".")[0] == "acktree":
            raise
        raise MissingExtra(
            f"acktree {name} needs {missing.name}: pip install 'acktree[{command.extra}]'"
        ) from missing
    assert isinstance(loaded, click.Command), f"{command.target} is not a command"
    return loaded


@click.group(cls=LazyGroup)
@click.version_option(package_name="acktree", message="%(prog)s %(version)s")
def main() -> None:
    """Commit a Kafka offset when everything derived from its record is done."""


if __name__ == "__main__":
    main()
