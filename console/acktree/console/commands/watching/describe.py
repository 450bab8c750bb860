"""`acktree describe`: prints spouts, bolts, ackers, lag, pending and the oldest age of a topology."""

import json

import click

from acktree.console.columns import columns, count, duration, milliseconds, rate, second, short_reason
from acktree.console.commands.options import (
    bootstrap_option,
    client_settings_option,
    duration_option,
    format_option,
    topology_option,
)
from acktree.console.view.cluster import Cluster
from acktree.console.view.documents import PartitionStatus, Status, WindowFigures, to_json
from acktree.console.view.snapshot import read_with_reports
from acktree.console.view.source_view import state_text
from acktree.console.view.status import make_status

EXIT_STUCK, EXIT_UNKNOWN = 1, 3
"""Exit codes as for a Nagios check: 3 if nothing is found stuck, and not everything is reported."""


@click.command()
@topology_option
@duration_option(
    "--stuck-after", "Age at which a pending record counts as stuck. Default: three message timeouts."
)
@format_option
@bootstrap_option
@client_settings_option
@click.pass_context
def describe(
    context: click.Context,
    topology: str,
    stuck_after: float | None,
    style: str,
    bootstrap: str,
    settings: dict[str, str],
) -> None:
    """Show the state of a topology.

    Exit code 1: something is stuck. 3: nothing reported is stuck, but a process that should report does not.
    """
    cluster = Cluster(bootstrap, topology, settings)
    status = make_status(*read_with_reports(cluster), after_s=stuck_after)
    cluster.close()
    click.echo(json.dumps(to_json(status)) if style == "json" else in_text(status))
    if status.stuck:
        context.exit(EXIT_STUCK)
    if status.unreported:
        context.exit(EXIT_UNKNOWN)


def in_text(status: Status) -> str:
    """Return the status as tables under upper-case heads."""
    totals = status.totals
    strip = columns(
        ("TOPOLOGY", "VERSION", "EMITTED/S", "COMPLETED/S", "FAILED/S", "PENDING", "OLDEST", "DEAD_LETTERS"),
        [
            (
                status.topology,
                status.version,
                rate(totals.emitted_per_s),
                rate(totals.completed_per_s),
                rate(totals.failed_per_s),
                count(totals.pending),
                duration(totals.oldest_pending_s),
                totals.dead_letters,
            )
        ],
    )
    parts = [strip, _spouts(status), _partitions(status.partitions), _bolts(status), _ackers(status)]
    parts.append(_processes(status))
    if status.stuck:
        parts.append(columns(("STUCK", "WHERE", "WHAT"), [(s.kind, s.where, s.text) for s in status.stuck]))
    parts += [f"spout {limit.spout}: {limit.text}" for limit in status.limits]
    for spout in status.spouts:
        if spout.breaker.state == "open":
            since = "" if spout.breaker.since_ms is None else f" since {second(spout.breaker.since_ms)}"
            parts.append(f"breaker of spout {spout.name}: open{since}; {spout.breaker.text}")
    parts += [f"note: {note}" for note in (*status.unreported, *status.notes)]
    if status.invalid_reports:
        parts.append(f"note: {status.invalid_reports} records of {status.topology}.stats are not reports")
    return "\n\n".join(parts)


def _spouts(status: Status) -> str:
    head = (
        "SPOUT",
        "STATE",
        "PROCESSES",
        "PENDING",
        "LAG",
        "OLDEST",
        "EMITTED/S",
        "COMPLETED/S",
        "COMPLETE_MS",
    )
    rows = []
    for spout in status.spouts:
        window: WindowFigures = spout.windows["10m"]
        rates = (rate(spout.emitted_per_s), rate(spout.completed_per_s))
        oldest = duration(spout.oldest_pending_s)
        counts = (spout.name, spout.state, spout.processes, count(spout.pending), spout.lag, oldest)
        rows.append((*counts, *rates, milliseconds(window.complete_latency_ms)))
    return columns(head, rows)


def _partitions(partitions: tuple[PartitionStatus, ...]) -> str:
    head = (
        "TOPIC",
        "PARTITION",
        "FRONTIER",
        "DONE_ABOVE",
        "PENDING",
        "LOG_END",
        "LAG",
        "HELD_BY",
        "HELD_FOR",
    )
    rows = []
    for partition in partitions:
        held = (
            ""
            if partition.held_by is None
            else f"{partition.held_by.offset} ({state_text(partition.held_by)})"
        )
        above = (count(partition.done_above), count(partition.pending))
        counts = (*above, partition.log_end, partition.lag)
        frontier = "" if partition.frontier is None else partition.frontier
        topic = partition.topic or f"(spout {partition.spout})"
        rows.append((topic, partition.partition, frontier, *counts, held, duration(partition.held_s)))
    return columns(head, rows)


def _bolts(status: Status) -> str:
    head = (
        "BOLT",
        "MEMBERS",
        "STATE",
        "LAG",
        "IN_HAND",
        "EXECUTED/S",
        "EXECUTE_MS",
        "PROCESS_MS",
        "CAPACITY",
    )
    rows = []
    for bolt in status.bolts:
        window: WindowFigures = bolt.windows["10m"]
        latencies = (milliseconds(window.execute_latency_ms), milliseconds(window.process_latency_ms))
        counts = (bolt.name, bolt.members, bolt.state, bolt.lag, bolt.in_hand, rate(bolt.executed_per_s))
        rows.append((*counts, *latencies, milliseconds(window.capacity)))
    return columns(head, rows)


def _ackers(status: Status) -> str:
    head = ("ACKER", "PARTITIONS", "PENDING", "ORPHANS", "FOLDED/S", "LAG", "CUT_LAG", "OLDEST", "ROOT")
    rows = [
        (
            acker.instance,
            acker.partitions,
            acker.pending,
            acker.orphans,
            rate(acker.folded_per_s),
            acker.lag,
            acker.cut_lag,
            duration(acker.oldest_root_age_s) if acker.oldest_root else "",
            acker.oldest_root or "",
        )
        for acker in status.ackers
    ]
    return columns(head, rows)


def _processes(status: Status) -> str:
    head = ("ROLE", "COMPONENT", "HOST", "PROCESS_ID", "TASK", "STARTED", "LAST_SEEN", "LAST_ERROR")
    rows = []
    for process in status.processes:
        where = (process.host or process.instance, process.pid or "")
        task = "" if process.task is None else process.task
        started = "" if process.started_ms is None else second(process.started_ms)
        when = "" if process.last_error_ms is None else f"{second(process.last_error_ms)} "
        error = when + short_reason(process.last_error) if process.last_error else ""
        seen = f"{duration(process.reported_s)} ago"
        rows.append((process.role, process.component, *where, task, started, seen, error))
    return columns(head, rows)
