"""The command line `acktree`: noun, verb, Kafka's option names.

A command's module is imported when that command runs, so `acktree broker` needs neither Spark nor numba and
`acktree --help` nothing at all. Every AcktreeError and every refusal by Kafka ends here, as one sentence
on stderr and exit code 2.
"""

import atexit
import errno
import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click

from acktree.console.columns import LINES, printable
from acktree.core.errors import how_to_install
from acktree.wire.errors import AcktreeError

EXIT_CRASH, EXIT_ERROR = 1, 2
UNUSABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EROFS,
    errno.ENOSPC,
    errno.ENAMETOOLONG,
)
"""Why a file or folder that the user has named cannot be used."""


class Command(NamedTuple):
    """The place of a command (`module:attribute`), its line in --help, and the extra that it needs."""

    target: str
    summary: str
    extra: str | None = None


COMMANDS = {
    "acl": Command(
        "acktree.console.commands.changing.acl:acl", "List or grant the rights that each role needs."
    ),
    "acker": Command("acktree.console.commands.running.acker:acker", "Run ackers.", "acker"),
    "bolt": Command("acktree.console.commands.running.bolt:bolt", "Run a bolt written in Python."),
    "broker": Command(
        "acktree.console.commands.running.broker:broker", "Run a Kafka broker for development.", "broker"
    ),
    "describe": Command(
        "acktree.console.commands.watching.describe:describe", "Show the state of a topology.", "ui"
    ),
    "dead-letter": Command(
        "acktree.console.commands.changing.dead_letter:dead_letter",
        "List, show and replay dead letters.",
        "ui",
    ),
    "doctor": Command(
        "acktree.console.commands.watching.doctor:doctor", "Check that a broker supports acktree."
    ),
    "export-traces": Command(
        "acktree.console.commands.watching.export_traces:export_traces",
        "Send trees as OpenTelemetry spans.",
        "otel",
    ),
    "demo": Command(
        "acktree.console.commands.running.demo:demo",
        "Run a whole topology on this machine and watch it.",
        "spark",
    ),
    "dev": Command(
        "acktree.console.commands.running.dev:dev", "Run a file of stages and bolts on this machine.", "acker"
    ),
    "breaker": Command(
        "acktree.console.commands.changing.breaker:breaker", "Close the breakers of spouts.", "ui"
    ),
    "drain": Command(
        "acktree.console.commands.changing.flow:drain",
        "Stop new records and wait for the pending ones.",
        "ui",
    ),
    "pause": Command("acktree.console.commands.changing.flow:pause", "Stop spouts from emitting.", "ui"),
    "pending": Command(
        "acktree.console.commands.watching.pending:pending", "List records that are not done.", "ui"
    ),
    "replay": Command("acktree.console.commands.changing.replay:replay", "Emit source records again."),
    "resume": Command("acktree.console.commands.changing.flow:resume", "Let spouts emit again.", "ui"),
    "rewind": Command(
        "acktree.console.commands.changing.rewind:rewind",
        "Move a spout back to an earlier offset.",
        "ui",
    ),
    "spark": Command(
        "acktree.console.commands.running.spark:spark", "Run a Spark stage of a topology.", "spark"
    ),
    "spout": Command("acktree.console.commands.running.spout:spout", "Run a spout written in Python."),
    "trace": Command(
        "acktree.console.commands.watching.trace:trace", "Show the tree of a source record.", "ui"
    ),
    "topics": Command("acktree.console.commands.changing.topics:topics", "Create the topics of a topology."),
    "topology": Command(
        "acktree.console.commands.changing.topology:topology", "Publish and show topologies."
    ),
    "ui": Command("acktree.console.commands.running.ui:ui", "Serve the status page of a topology.", "ui"),
}


class CommandUnavailable(AcktreeError):
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
        except Exception as error:
            if (sentence := _as_sentence(error)) is None:
                raise
            click.echo(f"error: {printable(sentence, LINES)}", err=True)
            ctx.exit(EXIT_ERROR)


def _as_sentence(error: Exception) -> str | None:
    """Return the sentence for the user, None for a broken invariant: that one crashes loudly."""
    if isinstance(error, AcktreeError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None and error.errno in UNUSABLE:
        return f"cannot use {error.filename}: {(error.strerror or str(error)).lower()}"
    kafka = sys.modules.get("confluent_kafka")  # not imported here: --help does without
    if kafka is not None and isinstance(error, kafka.KafkaException):
        from acktree.core.kafka.errors import as_clear_error

        return str(as_clear_error(error.args[0], "its address"))
    return None


def load(name: str, command: Command) -> click.Command:
    """Import a command. Raises CommandUnavailable."""
    module, attribute = command.target.split(":")
    try:
        loaded = getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        if command.extra is None or (missing.name or "").split(".")[0] == "acktree":
            raise
        raise CommandUnavailable(
            f"acktree {name} needs {missing.name}: {how_to_install(command.extra)}"
        ) from missing
    assert isinstance(loaded, click.Command), f"{command.target} is not a command"
    return loaded


@click.group(cls=LazyGroup)
@click.version_option(package_name="acktree", message="%(prog)s %(version)s")
def main() -> None:
    """Commit a Kafka offset when everything derived from its record is done."""


def run() -> None:
    """Run the command line, and end the process with the command's exit code.

    Threads of librdkafka outlive Python's objects, also those of a stuck worker's clients. One that
    speaks TLS while exit() takes OpenSSL down ends the process with a segmentation fault, so the last of the
    exit functions leaves before that.
    """
    code = EXIT_CRASH
    atexit.register(lambda: _leave(code))  # the first registered is the last called
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


def _leave(code: int) -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    run()
