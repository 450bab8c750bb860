"""`acktree broker`: runs a real single-node Kafka in the foreground."""

import json
import signal
from pathlib import Path
from typing import Any, NoReturn

import click

from acktree.console.commands.options import format_option, settings_option
from acktree.console.devbroker.broker import LocalBroker


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="The port for clients on 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the data is kept for the next start; by default a temporary folder, removed at the end.",
)
@settings_option(
    "A broker setting of Kafka, overriding acktree's defaults for one small machine; repeatable."
)
@format_option
def broker(port: int, data_dir: Path | None, settings: dict[str, str], style: str) -> None:
    """Run a Kafka broker for development.

    Prints only its address on stdout once it is ready; stops on SIGTERM or Ctrl-C. Needs Java 17 or newer;
    fetches Kafka itself on the first start. Only this machine can reach it.
    """
    leaving: list[int] = []

    def leave(number: int, _frame: Any) -> None:
        leaving.append(number)
        _leave()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    with LocalBroker(port, data_dir, settings) as kafka:
        if leaving:  # the exit was raised where nobody passes it on, such as in a finalizer
            _leave()
        about = {"bootstrap": kafka.bootstrap, "pid": kafka.pid}
        click.echo(json.dumps(about) if style == "json" else kafka.bootstrap)
        click.echo(f"ready: Kafka serves at {kafka.bootstrap}", err=True)
        kafka.wait()


def _leave() -> NoReturn:
    """End with code 0 through the `with`, whose stop is short and must not be cut off by a second Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(0)
