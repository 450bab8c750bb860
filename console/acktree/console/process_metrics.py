"""Metrics and health of a process that a command runs: served where the flags ask, and said on stderr."""

from collections.abc import Callable, Iterable

import click

from acktree.schemas.errors import NoMetrics
from acktree.schemas.progress import Progress
from acktree.schemas.stats import Report


def serve_process(
    topology: str, read: Callable[[], Iterable[Report]], progress: Progress, port: int | None, host: str
) -> None:
    """Serve what a process reports, until it ends; without a port do nothing. Raises NoMetrics."""
    if port is None:
        return
    try:
        from acktree.schemas.metrics_server import serve_reports
    except ModuleNotFoundError as missing:
        raise NoMetrics("metrics need prometheus_client: pip install 'acktree[metrics]'") from missing
    click.echo(f"metrics {serve_reports(topology, read, port, host, progress).url}", err=True)
