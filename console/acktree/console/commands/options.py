"""Options that many commands share, spelled as Kafka's own tools spell them.

A value is taken from the flag, then from the environment, then from the default.
"""

import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from acktree.console.properties import client_properties
from acktree.core import world
from acktree.core.durations import parse_duration_s

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
MAX_OFFSET_DIGITS = 18
_CONFIG_FILE = "acktree.config_file"


def bootstrap_option(command: Decorated) -> Decorated:
    """Add `-b/--bootstrap-server`; the command gets `bootstrap: str`."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT,…",
        envvar="ACKTREE_BOOTSTRAP_SERVER",
        required=True,
        help="Bootstrap brokers. Default: ACKTREE_BOOTSTRAP_SERVER.",
    )(command)


def settings_option(help: str) -> Callable[[Decorated], Decorated]:
    """Add `-X key=value`, repeatable; the command gets `settings: dict[str, str]`, the last of a key wins."""

    def add(command: Decorated) -> Decorated:
        return click.option(
            "-X",
            "settings",
            metavar="KEY=VALUE",
            multiple=True,
            callback=lambda _context, _parameter, values: parse_settings(values),
            help=help,
        )(command)

    return add


def client_settings_option(command: Decorated) -> Decorated:
    """Add `-X key=value` and `--command-config FILE`; the command gets `settings: dict[str, str]` of both.

    What the environment holds as ACKTREE_KAFKA_KEY comes between them.
    """
    with_file = click.option(
        "--command-config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="ACKTREE_COMMAND_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=lambda context, _parameter, path: context.meta.__setitem__(_CONFIG_FILE, path),
        help="File with librdkafka properties, KEY=VALUE lines; may contain secrets.",
    )
    with_flags = click.option(
        "-X",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        callback=lambda context, _parameter, values: client_properties(
            parse_settings(values), os.environ, context.meta.get(_CONFIG_FILE)
        ),
        help="A librdkafka property for every Kafka client; repeatable. Overrides ACKTREE_KAFKA_KEY, "
        "which overrides --command-config.",
    )
    return with_file(with_flags(command))


def topology_option(command: Decorated) -> Decorated:
    """Add `--topology NAME`; the command gets `topology: str`."""
    return click.option("--topology", metavar="NAME", required=True, help="The published topology.")(command)


def format_option(command: Decorated) -> Decorated:
    """Add `--format text|json`; the command gets `style: str`."""
    return click.option(
        "--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True
    )(command)


PLAN_HEAD = "plan, nothing has been changed yet:"
"""The first line of a plan that is not carried out: its lines read like what was done."""


def parse_seconds(text: str) -> float:
    """Return a duration in seconds, for an option."""
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def parse_time_ms(text: str) -> int:
    """Return a time in ms since 1970: a duration ago, or a date."""
    try:
        return int(1000 * datetime.fromisoformat(text).timestamp())
    except ValueError:
        pass
    try:
        return int(1000 * (world.wall_s() - parse_duration_s(text)))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is neither a duration, such as 2h, nor a date and time"
        ) from error


def duration_option(flag: str, help: str) -> Callable[[Decorated], Decorated]:
    """Add an option that takes a duration; the command gets seconds, or None."""

    def add(command: Decorated) -> Decorated:
        return click.option(
            flag,
            metavar="DURATION",
            callback=lambda _context, _parameter, text: None if text is None else parse_seconds(text),
            help=help,
        )(command)

    return add


def metrics_options(command: Decorated) -> Decorated:
    """Add `--metrics-port` and `--metrics-host`; the command gets `metrics_port` and `metrics_host`."""
    host = click.option(
        "--metrics-host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to bind."
    )
    port = click.option(
        "--metrics-port",
        metavar="N",
        type=click.IntRange(0, 65535),
        help="Serve Prometheus metrics; 0 = a free port.",
    )
    return port(host(command))


def stuck_after_option(command: Decorated) -> Decorated:
    """Add `--stuck-after DURATION`; the command gets `stuck_after: float | None`, in seconds."""
    return duration_option(
        "--stuck-after",
        "/health fails if the loop is stalled for longer. Default: max.poll.interval.ms, 5 minutes.",
    )(command)


def parse_settings(values: tuple[str, ...]) -> dict[str, str]:
    """Return KEY=VALUE pairs as a dict.

    >>> parse_settings(("linger.ms=5", "sasl.username=a=b"))
    {'linger.ms': '5', 'sasl.username': 'a=b'}
    """
    settings = {}
    for value in values:
        key, equals, setting = value.partition("=")
        if not (key.strip() and equals):
            raise click.BadParameter(f"{key!r} is not KEY=VALUE")
        settings[key.strip()] = setting.strip()
    return settings


def is_offset(text: str) -> bool:
    """Return whether a text is a whole number that a partition or an offset can be.

    >>> is_offset("7"), is_offset("-1"), is_offset("\u00b2"), is_offset("9" * 5000)
    (True, False, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) <= MAX_OFFSET_DIGITS


def log_to_stderr() -> None:
    """Print what this process logs, from warnings on."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
