"""`acktree ui`: serves the status page of one or several topologies."""

import json
from pathlib import Path

import click
import uvicorn

from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    format_option,
    log_to_stderr,
    metrics_options,
)
from acktree.console.devbroker.ports import listen
from acktree.console.page.app import StatusPage
from acktree.console.page.serving.access import TOKEN_VARIABLE, read_token
from acktree.console.page.serving.frame import PageSettings
from acktree.console.page.serving.status_metrics import StatusCollector
from acktree.console.published import all_published
from acktree.core.errors import UnknownTopology
from acktree.core.kafka.clients import make_admin
from acktree.core.kafka.settings import Settings
from acktree.core.reports.metrics_server import serve

MAX_TOPOLOGIES = 50
"""Each has its own thread and connections."""


@click.command()
@click.option(
    "--topology",
    "topologies",
    metavar="NAME",
    multiple=True,
    help="The published topology; repeatable.",
)
@click.option("--all", "is_all", is_flag=True, help="All topologies that are published when it starts.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to bind; beyond loopback only with a token.",
)
@click.option(
    "--port", default=9461, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 = a free port."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"File with the token that visitors need. Default: {TOKEN_VARIABLE}, or none.",
)
@click.option("--allow-actions", is_flag=True, help="Let visitors replay records after a confirmation.")
@click.option("--no-payloads", is_flag=True, help="Show no key, value or header of a record to visitors.")
@bootstrap_option
@client_settings_option
@metrics_options
@format_option
def ui(
    topologies: tuple[str, ...],
    is_all: bool,
    host: str,
    port: int,
    token_file: Path | None,
    allow_actions: bool,
    no_payloads: bool,
    bootstrap: str,
    settings: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
    style: str,
) -> None:
    """Serve the status page, and optionally its figures as metrics, until SIGTERM or SIGINT.

    It reads the topic TOPOLOGY.stats, consumer groups and the log, and holds no state.
    """
    log_to_stderr()
    token = read_token(token_file, host)
    listening = listen(host, port)
    with listening:
        make_admin(bootstrap, settings)
        names = _names(topologies, is_all, bootstrap, settings)
        page = StatusPage(
            *(
                PageSettings(bootstrap, name, settings, token, allow_actions, payloads=not no_payloads)
                for name in names
            )
        )
        if metrics_port is not None:
            served = serve(StatusCollector(page.readers()), metrics_port, metrics_host)
            click.echo(f"metrics {served.url}", err=True)
        number = listening.getsockname()[1]
        config = uvicorn.Config(page.make_app(), log_level="warning", access_log=False)
        url = f"http://{'[' + host + ']' if ':' in host else host}:{number}/"
        if style == "json":
            served_names = {"topology": names[0]} if len(names) == 1 else {"topologies": names}
            click.echo(json.dumps({**served_names, "url": url}))
        click.echo(f"ready ui {url}", err=True)
        uvicorn.Server(config).run([listening])


def _names(wanted: tuple[str, ...], is_all: bool, bootstrap: str, settings: Settings) -> list[str]:
    """Return the topologies to show, each once.

    Raises:
        UnknownTopology: all are wanted, and none is published.
        UsageError: neither or both flags are given, or there are more than MAX_TOPOLOGIES.
    """
    if bool(wanted) == is_all:
        raise click.UsageError("give --topology NAME, once for each topology, or --all")
    names = list(dict.fromkeys(wanted))
    if is_all:
        names = [each.name for each in all_published(bootstrap, settings)]
    if not names:
        raise UnknownTopology(
            "no topology is published on this cluster; publish one: acktree topology apply FILE"
        )
    if len(names) > MAX_TOPOLOGIES:
        raise click.UsageError(f"{len(names)} topologies are too many for one page; {MAX_TOPOLOGIES} at most")
    return names
