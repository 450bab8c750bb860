"""Runs the process of a role: its options, its log, its metrics and health, and its end by a signal."""

import signal
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Protocol

import click

from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    log_to_stderr,
    metrics_options,
    stuck_after_option,
    topology_option,
)
from acktree.core.errors import NoMetrics, how_to_install
from acktree.core.kafka.clients import make_admin
from acktree.core.reports.liveness import Liveness
from acktree.core.reports.stats import Report
from acktree.core.user_code import clear_user_errors


class _Reports(Protocol):
    @property
    def newest(self) -> Iterable[Report]: ...


class _Role(Protocol):
    name: str
    progress: Liveness

    @property
    def reports(self) -> _Reports: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...


def role_command(find: Callable[..., Callable[..., _Role]]) -> Callable[..., None]:
    """Make a command of a function that returns what makes a role's process; add the options of every role.

    The process runs until SIGTERM or SIGINT.
    """

    @bootstrap_option
    @topology_option
    @client_settings_option
    @metrics_options
    @stuck_after_option
    @wraps(find)
    def run(
        bootstrap: str,
        topology: str,
        settings: dict[str, str],
        metrics_port: int | None,
        metrics_host: str,
        stuck_after: float | None,
        **own: Any,
    ) -> None:
        log_to_stderr()
        _on_signals(lambda: sys.exit(0))
        make = find(**own)
        make_admin(bootstrap, settings)
        role = make(
            bootstrap,
            topology,
            user=settings,
            ready=lambda text: click.echo(text, err=True),
            stuck_after_s=stuck_after,
        )
        _on_signals(role.stop)
        if metrics_port is not None:
            _serve_metrics(topology, role, metrics_port, metrics_host)
        group = click.get_current_context().parent
        with clear_user_errors(f"{group and group.info_name} {role.name}"):
            role.run()

    return run


def _on_signals(end: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())


def _serve_metrics(topology: str, role: _Role, port: int, host: str) -> None:
    """Serve what a process reports, until it ends. Raises NoMetrics."""
    try:
        from acktree.core.reports.metrics_server import serve_reports
    except ModuleNotFoundError as missing:
        raise NoMetrics(f"metrics need prometheus_client: {how_to_install('metrics')}") from missing
    served = serve_reports(topology, lambda: role.reports.newest, port, host, role.progress)
    click.echo(f"metrics {served.url}", err=True)
