"""`acktree ui`: the status page of a topology."""

import json
from pathlib import Path

import click
import uvicorn

from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    format_option,
    topology_option,
)
from acktree.console.devbroker.ports import listen
from acktree.console.page.access import TOKEN_VARIABLE, read_token
from acktree.console.page.app import StatusPage
from acktree.console.page.frame import PageSettings
from acktree.schemas.clients import make_admin


@click.command()
@topology_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to serve; beyond loopback only with a token.",
)
@click.option(
    "--port", default=9461, show_default=True, type=click.IntRange(0, 65535), help="0 = a free one."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"File with the token that visitors need: this flag, then {TOKEN_VARIABLE}, then none.",
)
@click.option(
    "--allow-actions", is_flag=True, help="Let visitors replay records, after a plan and a confirmation."
)
@bootstrap_option
@client_settings_option
@format_option
def ui(
    topology: str,
    host: str,
    port: int,
    token_file: Path | None,
    allow_actions: bool,
    bootstrap: str,
    settings: dict[str, str],
    style: str,
) -> None:
    """Serve the status page until SIGTERM or SIGINT.

    It reads T.stats, groups and the log, holds no state, and may be restarted or absent without harm.
    """
    token = read_token(token_file, host)
    listening = listen(host, port)
    make_admin(bootstrap, settings)
    page = StatusPage(PageSettings(bootstrap, topology, settings, token, allow_actions))
    number = listening.getsockname()[1]
    config = uvicorn.Config(page.make_app(), log_level="warning", access_log=False)
    url = f"http://{'[' + host + ']' if ':' in host else host}:{number}/"
    if style == "json":
        click.echo(json.dumps({"topology": topology, "url": url}))
    click.echo(f"ready ui {url}", err=True)
    uvicorn.Server(config).run([listening])
