"""`acktree pending list`: the source records that are emitted and not done, the oldest first."""

import json

import click

from acktree.console.columns import age_of, columns, moment, short_reason
from acktree.console.commands.describe import EXIT_STUCK, EXIT_UNKNOWN
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    duration_option,
    format_option,
    time_limit_option,
    topology_option,
)
from acktree.console.view.cluster import Cluster
from acktree.console.view.documents import PendingRecord, pending_document
from acktree.console.view.report_log import REPORTS_SPAN_S, read_reports
from acktree.console.view.reports import Reports
from acktree.console.view.snapshot import LIMIT_S, read_snapshot
from acktree.console.view.status import apply_reported_offsets, oldest_pending
from acktree.console.view.stuck import is_older, stuck_after_s


@click.group()
def pending() -> None:
    """List records that are not done."""


@pending.command(name="list")
@topology_option
@duration_option("--older-than", "Only records whose first emission is longer ago, or not known.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="So many at most.")
@time_limit_option
@format_option
@bootstrap_option
@client_settings_option
@click.pass_context
def list_pending(
    context: click.Context,
    topology: str,
    older_than: float | None,
    limit: int,
    time_limit: float | None,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """List pending records, the oldest first emission first.

    Exit code 1: one of them is older than --older-than, or without it than three message timeouts, or was
    emitted again and its first emission is not known. 3: none is, in what was read within --time-limit, but
    that was not all.
    """
    cluster, reports = Cluster(bootstrap, topology, settings), Reports()
    read_reports(cluster, reports, REPORTS_SPAN_S)
    snapshot = read_snapshot(cluster, limit_s=time_limit or LIMIT_S)
    apply_reported_offsets(snapshot, reports)
    cluster.close()
    if (block := max((view.block for view in snapshot.views.values()), default=1)) > 1:
        snapshot.notes.append(
            f"up to {block} records share a root in their first emission: that of the first of them"
        )
    found = oldest_pending(snapshot, limit, older_than or 0.0)
    if style == "json":
        document = pending_document(topology, found, snapshot.notes, snapshot.is_complete)
        click.echo(json.dumps(document))
    else:
        click.echo(in_text(found))
        for note in snapshot.notes:
            click.echo(f"note: {note}", err=True)
    after_s = stuck_after_s(snapshot.topology, older_than)
    if any(is_older(record, after_s) for record in found):
        context.exit(EXIT_STUCK)
    if not snapshot.is_complete:
        context.exit(EXIT_UNKNOWN)


def in_text(found: list[PendingRecord]) -> str:
    """Return a table of pending records."""
    head = (
        *("TOPIC", "PARTITION", "OFFSET", "STATE", "AGE"),
        *("FIRST_EMISSION", "LATEST_EMISSION", "ATTEMPTS", "ROOT", "REASON"),
    )
    rows = [
        (
            record.topic or f"(spout {record.spout})",
            record.partition,
            record.offset,
            record.state,
            age_of(record),
            "unknown" if record.first_emission_ms is None else moment(record.first_emission_ms),
            "unknown" if record.latest_emission_ms is None else moment(record.latest_emission_ms),
            "" if record.attempts is None else record.attempts,
            record.root or "",
            short_reason(record.reason or ""),
        )
        for record in found
    ]
    return columns(head, rows)
