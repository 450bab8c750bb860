"""`acktree export-traces`: exports the trees of failed, timed-out and slow records as OpenTelemetry spans."""

import signal

import click

from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    duration_option,
    log_to_stderr,
    metrics_options,
    stuck_after_option,
    topology_option,
)
from acktree.console.traces.export import TraceExport
from acktree.console.traces.finished import Selection
from acktree.console.traces.otlp import OtlpSender
from acktree.core.reports.liveness import STUCK_AFTER_S, Liveness


@click.command()
@topology_option
@click.option(
    "--otlp",
    metavar="URL",
    help="The receiver, such as http://localhost:4318. Default: from OTEL_EXPORTER_OTLP_*.",
)
@duration_option("--slow", "Also export done records that took longer. Default: only failed ones.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Fraction of source records whose trees are exported.",
)
@click.option(
    "--per-minute",
    type=click.IntRange(1),
    default=600,
    show_default=True,
    help="Maximum number of trees per minute; the others are counted.",
)
@bootstrap_option
@client_settings_option
@metrics_options
@stuck_after_option
def export_traces(
    topology: str,
    otlp: str | None,
    slow: float | None,
    sample: float,
    per_minute: int,
    bootstrap: str,
    settings: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
    stuck_after: float | None,
) -> None:
    """Export the tree of every record that failed, timed out or was slow as spans, until SIGTERM or SIGINT.

    It follows the results in the consumer group TOPOLOGY.traces, and reads each tree from the log. A second
    process is a standby.
    """
    log_to_stderr()
    sender = OtlpSender(topology, otlp)
    export = TraceExport(
        bootstrap,
        topology,
        settings,
        sender,
        slow_s=slow,
        selection=Selection(sample, per_minute),
        ready=lambda text: click.echo(text, err=True),
        progress=Liveness(stuck_after or STUCK_AFTER_S),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: export.stop())
    if metrics_port is not None:
        from acktree.console.traces.export_metrics import ExportCollector
        from acktree.core.reports.metrics_server import serve

        served = serve(ExportCollector(topology, export, sender), metrics_port, metrics_host, export.progress)
        click.echo(f"metrics {served.url}", err=True)
    export.run()
