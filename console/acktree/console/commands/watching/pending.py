"""`acktree pending list`: lists the pending records that are known one by one, oldest first."""

import json
from collections.abc import Iterable, Iterator, Sequence

import click

from acktree.console.columns import age_of, columns, count, duration, moment
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    duration_option,
    format_option,
    topology_option,
)
from acktree.console.commands.watching.describe import EXIT_STUCK, EXIT_UNKNOWN
from acktree.console.view.cluster import Cluster
from acktree.console.view.documents import PendingRecord, Status, pending_document
from acktree.console.view.snapshot import read_with_reports
from acktree.console.view.source_view import is_older, is_retried, oldest_pending, state_text, trace_command
from acktree.console.view.status import make_status, source_views
from acktree.console.view.stuck import stuck_after_s
from acktree.core.reports.stats import OLDEST_ROOTS


@click.group()
def pending() -> None:
    """List records that are not done."""


@pending.command(name="list")
@topology_option
@duration_option("--older-than", "Only records that are known to be older.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of entries."
)
@format_option
@bootstrap_option
@client_settings_option
@click.pass_context
def list_pending(
    context: click.Context,
    topology: str,
    older_than: float | None,
    limit: int,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """List pending records, oldest first.

    They are the records at the frontiers, as spouts report them, and the oldest pending roots of each acker.
    Exit code 1: one of them is older than --older-than (default: three message timeouts), not counting those
    that a task failed and that will be retried. 3: none is, but a process that should report does not.
    """
    cluster = Cluster(bootstrap, topology, settings)
    snapshot, reports = read_with_reports(cluster)
    cluster.close()
    status = make_status(snapshot, reports)
    found = oldest_pending(source_views(snapshot, reports), limit, older_than)
    if style == "json":
        click.echo(json.dumps(pending_document(status, found)))
    else:
        click.echo(in_text(found))
        for line in remarks(status, found):
            click.echo(line, err=True)
    after_s = stuck_after_s(snapshot.topology, older_than)
    old = [record for record in found if is_older(record, after_s)]
    if any(older_than is not None or not is_retried(record, after_s) for record in old):
        context.exit(EXIT_STUCK)
    if status.unreported:
        context.exit(EXIT_UNKNOWN)


def in_text(found: Iterable[PendingRecord]) -> str:
    """Return a table of pending records."""
    head = ("TOPIC", "PARTITION", "OFFSET", "STATE", "AGE", "FIRST_EMISSION", "ATTEMPTS", "ROOT", "ROOT_AGE")
    rows = [
        (
            record.topic or f"(spout {record.spout})",
            record.partition,
            record.offset,
            state_text(record),
            age_of(record),
            "unknown" if record.first_emission_ms is None else moment(record.first_emission_ms),
            record.attempts,
            record.root or "",
            "" if record.root_age_s is None else duration(record.root_age_s),
        )
        for record in found
    ]
    return columns(head, rows)


def remarks(status: Status, found: Sequence[PendingRecord]) -> Iterator[str]:
    """Yield what a table of pending records leaves open: how many there are, what they wait for, notes."""
    yield (
        f"{len(found)} of {count(status.totals.pending)} pending records are listed: the record that "
        f"holds each frontier, and the {OLDEST_ROOTS} oldest roots of each acker"
    )
    for bolt in status.bolts:
        if bolt.lag:
            yield f"bolt {bolt.name} is {bolt.lag} records behind"
    if found:
        yield f"to see what the oldest one waits for: {trace_command(status.topology, found[0])}"
    yield from (f"note: {note}" for note in (*status.unreported, *status.notes))
