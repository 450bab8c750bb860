"""Combines a snapshot and the reports into the Status that command line and page show. Pure.

Invariant: the log and the groups win over reports; a report is trusted for rates and latencies
only. Reports of components that the topology does not have are ignored.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from acktree.console.view.breakers import breaker_of
from acktree.console.view.documents import (
    AckerStatus,
    BoltStatus,
    InputStatus,
    PartitionStatus,
    SpoutStatus,
    Stall,
    Status,
    TopicRate,
    Totals,
    WindowFigures,
)
from acktree.console.view.limits import find_limits, find_queues
from acktree.console.view.processes import make_processes
from acktree.console.view.reports import (
    SILENT_AFTER_S,
    WINDOWS_S,
    Process,
    Reports,
    figure,
    is_starting,
    whole,
)
from acktree.console.view.reports import Totals as Counts
from acktree.console.view.snapshot import Snapshot
from acktree.console.view.source_view import (
    ROOT,
    SlotView,
    oldest_pending,
    open_roots,
    reported_roots,
    slot_view,
)
from acktree.console.view.stuck import find_stuck, stuck_after_s, stuck_transactions
from acktree.core.topology.flow import Flow

OLDEST = 20
Rates = Mapping[tuple[str, str | None], float]


def make_status(
    snapshot: Snapshot, reports: Reports, edges: Rates | None = None, after_s: float | None = None
) -> Status:
    """Return the whole status; ``edges`` are records a second by (topic, reader or None)."""
    topology, now_ms = snapshot.topology, snapshot.time_ms
    views = source_views(snapshot, reports)
    partitions = tuple(_partition(snapshot, view) for view in views)
    spouts = tuple(_spout(snapshot, reports, name, partitions) for name in topology.spouts)
    bolts = tuple(_bolt(snapshot, reports, name) for name in topology.bolts)
    ackers = tuple(_acker(process, now_ms) for process in reports.alive("acker", None, now_ms))
    lag = _acker_lag(snapshot, ackers)
    group = snapshot.groups.get(topology.acker_group)
    stalls = tuple(_stalls(reports, now_ms))
    limits = find_limits(reports.alive("acker", None, now_ms), topology.spouts, bolts)
    limit_s = stuck_after_s(topology, after_s)
    transactions = tuple(stuck_transactions(snapshot.transactions, now_ms, limit_s))
    stuck = find_stuck(
        *(topology, limit_s, stalls, partitions, spouts, bolts, ackers, lag),
        *(snapshot.groups, limits, transactions),
    )
    return Status(
        topology=topology.name,
        version=topology.version,
        ackers_wanted=topology.ackers,
        message_timeout_s=topology.message_timeout_s,
        time_ms=now_ms,
        stuck=stuck,
        limits=limits + find_queues(spouts, bolts, topology, {limit.spout for limit in limits}),
        totals=_totals(snapshot, spouts),
        spouts=spouts,
        partitions=partitions,
        bolts=bolts,
        acker_group=topology.acker_group,
        acker_members=len(group.members) if group else 0,
        acker_lag=lag,
        ackers=ackers,
        processes=make_processes(reports, now_ms),
        stalls=stalls,
        edges=_edges(snapshot, edges or {}),
        oldest=tuple(oldest_pending(views, OLDEST)),
        reports=reports.accepted,
        invalid_reports=reports.invalid_reports,
        unreported=tuple(_unreported(snapshot, reports, spouts, ackers)),
        notes=tuple(snapshot.notes) + tuple(_young_transactions(snapshot, limit_s)),
    )


def _young_transactions(snapshot: Snapshot, limit_s: float) -> Iterator[str]:
    """Yield what is to be said of open transactions that are not stuck yet."""
    for each in snapshot.transactions:
        if snapshot.time_ms - each.since_ms <= 1000 * limit_s:
            yield each.text(snapshot.time_ms)


def source_views(snapshot: Snapshot, reports: Reports) -> list[SlotView]:
    """Return the source partitions, each with what is reported of it."""
    now_ms, commits = snapshot.time_ms, snapshot.inputs
    roots = open_roots(reports.alive("acker", None, now_ms))
    spouts = {name: reports.alive("spout", name, now_ms) for name in snapshot.topology.spouts}
    return [
        slot_view(
            slot, commits.get((slot.topic, slot.partition)), roots.get(slot.slot, {}), spouts[slot.spout]
        )
        for slot in snapshot.slots
    ]


def _unreported(
    snapshot: Snapshot, reports: Reports, spouts: Iterable[SpoutStatus], ackers: Collection[AckerStatus]
) -> Iterator[str]:
    """Yield what is not known because no process reports it, unless all that is there is done.

    No record above the ackers' cut means that no tree is open, so a spout without topics has none either.
    """
    topology, now_ms = snapshot.topology, snapshot.time_ms
    waiting = [
        each for each in spouts if each.lag or (snapshot.cut_lag and not topology.spouts[each.name].topics)
    ]
    for spout in waiting:
        if not spout.processes:
            silent = _silence(reports, "spout", spout.name, now_ms)
            yield f"no process of spout {spout.name} has reported {silent}: its pending records are not known"
        elif spout.is_starting:
            yield f"spout {spout.name} is starting: its pending records are not known yet"
    reported = sum(acker.partitions for acker in ackers)
    if waiting and topology.ackers and not ackers:
        silent = _silence(reports, "acker", None, now_ms)
        yield f"no acker has reported {silent}: which roots are pending is not known"
    elif waiting and reported < topology.ackers:
        yield (
            f"ackers have reported {reported} of {topology.ackers} acker partitions: "
            "which roots the others have pending is not known"
        )


def _silence(reports: Reports, role: str, component: str | None, now_ms: int) -> str:
    """Return for how long nothing was reported, as far as that is known."""
    times = [process.latest.time_ms for process in reports.processes_of(role, component)]
    return f"for {(now_ms - max(times)) / 1000 if times else SILENT_AFTER_S:.0f} s" + (
        "" if times else " or longer"
    )


def _partition(snapshot: Snapshot, view: SlotView) -> PartitionStatus:
    slot, place = view.slot, (view.slot.topic, view.slot.partition)
    start = snapshot.starts.get(place, 0)
    base = view.frontier if view.frontier is not None else start
    end = snapshot.ends.get(place, base)
    waiting = view.pending or len(view.roots)
    return PartitionStatus(
        spout=slot.spout,
        topic=slot.topic,
        partition=slot.partition,
        slot=slot.slot,
        task=snapshot.topology.task_of(slot),
        log_start=start,
        log_end=end,
        frontier=view.frontier,
        next_offset=view.next_offset,
        done_above=view.done_above,
        pending=view.pending,
        lag=max(0, end - base - (view.done_above or 0)) if slot.topic else waiting,
        held_by=view.held_by,
        held_s=view.held_s,
    )


def _ratio_ms(total_s: float, count: float) -> float | None:
    return round(1000 * total_s / count, 3) if count > 0 else None


def _windows(reports: Reports, role: str, name: str, now_ms: int) -> dict[str, WindowFigures]:
    made = {}
    for label, seconds in WINDOWS_S.items():
        counted, lasted_s = reports.counted(role, name, seconds, now_ms)
        made[label] = _spout_window(counted) if role == "spout" else _bolt_window(counted, lasted_s)
    return made


def _spout_window(counted: Counts) -> WindowFigures:
    acked = counted.get("completed", 0) + counted.get("acked", 0)
    waited_s = counted.get("pending_s")
    return WindowFigures(
        emitted=int(counted.get("emitted", 0)),
        acked=int(acked),
        failed=int(counted.get("failed", 0)),
        timed_out=int(counted.get("timed_out", 0)),
        complete_latency_ms=None if waited_s is None else _ratio_ms(waited_s, acked),
    )


def _bolt_window(counted: Counts, lasted_s: float) -> WindowFigures:
    executed = counted.get("executed", 0)
    busy_s, process_s = counted.get("busy_s"), counted.get("process_s")
    answered = counted.get("acked", 0) + counted.get("failed", 0)
    return WindowFigures(
        emitted=int(counted.get("emitted", 0)),
        acked=int(counted.get("acked", 0)),
        failed=int(counted.get("failed", 0)),
        process_latency_ms=None if process_s is None else _ratio_ms(process_s, answered),
        execute_latency_ms=None if busy_s is None else _ratio_ms(busy_s, executed),
        capacity=round(busy_s / lasted_s, 4) if busy_s is not None and lasted_s > 0 else None,
    )


def _per_s(rates: Counts | None, *names: str) -> float | None:
    return None if rates is None else sum(rates.get(name, 0.0) for name in names)


def _sum_known(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _sum_of_all(counts: Iterable[int | None]) -> int | None:
    """Return a sum, None if a part of it is not known."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _spout(
    snapshot: Snapshot, reports: Reports, name: str, partitions: Iterable[PartitionStatus]
) -> SpoutStatus:
    now_ms = snapshot.time_ms
    mine = [entry for entry in partitions if entry.spout == name]
    alive, rates = reports.alive("spout", name, now_ms), reports.rates("spout", name, now_ms)
    ever, _ = reports.counted("spout", name, None, now_ms)
    return SpoutStatus(
        name=name,
        flow=snapshot.flows.get(name, Flow.RUNNING).value,
        tasks=snapshot.topology.spouts[name].tasks,
        processes=len(alive),
        pending=_sum_of_all(entry.pending for entry in mine),
        pending_limit=sum(whole(process, "pending_limit") for process in alive),
        lag=sum(entry.lag for entry in mine),
        oldest_pending_s=max((each.held_s for each in mine if each.held_s is not None), default=None),
        emitted_per_s=_per_s(rates, "emitted"),
        completed_per_s=_per_s(rates, "completed", "acked"),
        failed_per_s=_per_s(rates, "failed"),
        timed_out=int(ever.get("timed_out", 0)),
        replayed=int(ever.get("replayed", 0)),
        dead_lettered=int(ever.get("dead_lettered", 0)),
        windows=_windows(reports, "spout", name, now_ms),
        breaker=breaker_of(alive),
        is_starting=bool(alive) and all(is_starting(process) for process in alive),
    )


def _bolt(snapshot: Snapshot, reports: Reports, name: str) -> BoltStatus:
    topology, now_ms = snapshot.topology, snapshot.time_ms
    commits, reads = snapshot.bolt_commits[name], topology.bolts[name].reads
    inputs = []
    for place, end in snapshot.ends.items():
        if place[0] in reads:
            committed = commits[place].next_offset if place in commits else None
            start = snapshot.starts.get(place, 0)
            lag = max(0, end - max(start, committed if committed is not None else start))
            inputs.append(InputStatus(*place, committed, end, lag))
    group = snapshot.groups.get(topology.group_of(name))
    rates = reports.rates("bolt", name, now_ms)
    alive = reports.alive("bolt", name, now_ms)
    return BoltStatus(
        name=name,
        group=topology.group_of(name),
        state=group.state if group else "UNKNOWN",
        members=len(group.members) if group else 0,
        processes=len(alive),
        lag=sum(entry.lag for entry in inputs),
        in_hand=sum(whole(process, "in_hand") for process in alive),
        executed_per_s=_per_s(rates, "executed"),
        emitted_per_s=_per_s(rates, "emitted"),
        failed_per_s=_per_s(rates, "failed"),
        inputs=tuple(inputs),
        windows=_windows(reports, "bolt", name, now_ms),
    )


def _acker(process: Process, now_ms: int) -> AckerStatus:
    ages = reported_roots(process)
    root = max(ages, key=lambda root: ages[root], default=None)
    return AckerStatus(
        instance=process.latest.instance,
        partitions=whole(process, "partitions"),
        pending=whole(process, "pending"),
        orphans=whole(process, "orphans"),
        folded_per_s=_per_s(process.rates(now_ms), "folded"),
        lag=whole(process, "lag"),
        cut_lag=whole(process, "cut_lag"),
        invalid=whole(process, "invalid"),
        table_bytes=whole(process, "table_bytes"),
        oldest_root=None if root is None else f"{root:016x}",
        oldest_root_age_s=0.0 if root is None else ages[root],
        reported_s=max(0.0, (now_ms - process.latest.time_ms) / 1000),
    )


def _stalls(reports: Reports, now_ms: int) -> Iterable[Stall]:
    """Yield the processes whose newest report is of a stall, the longest first."""
    found = []
    for role in ("bolt", "spout", "acker"):
        for process in reports.alive(role, None, now_ms):
            report = process.latest
            if (stalled_s := figure(process, "stalled_s")) is not None:
                texts = (report.values.get(name) for name in ("executing", "executing_root", "calling"))
                executing, root, calling = (text if isinstance(text, str) else None for text in texts)
                limit_s = figure(process, "stuck_after_s")
                found.append(
                    Stall(
                        role,
                        report.component,
                        report.instance,
                        stalled_s,
                        limit_s,
                        executing=executing,
                        root=root if root and ROOT.fullmatch(root) else None,
                        calling=calling,
                    )
                )
    return sorted(found, key=lambda stall: -stall.stalled_s)


def _acker_lag(snapshot: Snapshot, ackers: tuple[AckerStatus, ...]) -> int:
    """Return how many control records wait: as the ackers report, or above the cut where none runs."""
    return sum(acker.lag for acker in ackers) if ackers else snapshot.cut_lag


def _totals(snapshot: Snapshot, spouts: tuple[SpoutStatus, ...]) -> Totals:
    ages = [spout.oldest_pending_s for spout in spouts if spout.oldest_pending_s is not None]
    return Totals(
        emitted_per_s=_sum_known(spout.emitted_per_s for spout in spouts),
        completed_per_s=_sum_known(spout.completed_per_s for spout in spouts),
        failed_per_s=_sum_known(spout.failed_per_s for spout in spouts),
        timed_out=sum(spout.timed_out for spout in spouts),
        replayed=sum(spout.replayed for spout in spouts),
        pending=_sum_of_all(spout.pending for spout in spouts),
        oldest_pending_s=max(ages, default=None),
        dead_letters=snapshot.dead_letters,
    )


def _edges(snapshot: Snapshot, rates: Rates) -> tuple[TopicRate, ...]:
    topology = snapshot.topology
    found = [TopicRate(topic, None, rates.get((topic, None))) for topic in topology.emitted_topics()]
    for name, table in topology.bolts.items():
        found += [TopicRate(topic, name, rates.get((topic, name))) for topic in table.reads]
    return tuple(found)
