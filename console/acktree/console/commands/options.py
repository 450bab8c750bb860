"""Options that many commands share, spelled as Kafka's own tools spell them.

A value is taken from the flag, then from the environment, then from the default.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def bootstrap_option(command: Decorated) -> Decorated:
    """Add `-b/--bootstrap-server`; the command gets `bootstrap: str`."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT,…",
        envvar="ACKTREE_BOOTSTRAP_SERVER",
        required=True,
        help="Kafka brokers to start from: this flag, then ACKTREE_BOOTSTRAP_SERVER; there is no default.",
    )(command)


def own_broker_option(command: Decorated) -> Decorated:
    """Add `-b/--bootstrap-server` where a broker can be started; the command gets `bootstrap: str | None`."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT,…",
        envvar="ACKTREE_BOOTSTRAP_SERVER",
        help="Kafka brokers to work on. Default: a broker of its own, gone afterwards.",
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


client_settings_option = settings_option("A librdkafka property for every Kafka client; repeatable.")


def topology_option(command: Decorated) -> Decorated:
    """Add `--topology NAME`; the command gets `topology: str`."""
    return click.option("--topology", metavar="NAME", required=True, help="The published topology.")(command)


def parse_settings(values: tuple[str, ...]) -> dict[str, str]:
    """Return KEY=VALUE pairs as a dict.

    >>> parse_settings(("linger.ms=5", "sasl.password=a=b"))
    {'linger.ms': '5', 'sasl.password': 'a=b'}
    """
    settings = {}
    for value in values:
        key, equals, setting = value.partition("=")
        if not (key.strip() and equals):
            raise click.BadParameter(f"{key!r} is not KEY=VALUE")
        settings[key.strip()] = setting.strip()
    return settings
