"""The documents that command line and page share; their JSON is these fields, as docs/operate.md lists them.

Invariant: plain data. Times are milliseconds since 1970 (`_ms`), durations seconds (`_s`) or milliseconds
where the name says so, rates per second (`_per_s`), offsets as Kafka counts them: `frontier` and ends are
exclusive. None is "not known".
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from acktree.console.view.breakers import BreakerStatus


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """A component's figures over one window of time."""

    emitted: int
    acked: int
    failed: int
    timed_out: int | None = None
    complete_latency_ms: float | None = None
    process_latency_ms: float | None = None
    execute_latency_ms: float | None = None
    capacity: float | None = None


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A source record that is emitted and not done; `root`, `attempt`, `root_age_s`: its newest emission's.

    `age_s` is the time since its first emission. If that is unknown, `at_least_s` is a lower bound, None if
    nobody reports one. `attempts` is how often it is known to have been emitted. `root_age_s` is the time
    since the last message of its tree. Ages are those of the newest reports.

    For one at a frontier that a task has failed, `reason` says why, `next_attempt_s` in how long it is
    emitted again, None while it is in flight, and `idle_s` for how long it has been in flight or overdue.
    """

    spout: str
    topic: str
    partition: int
    offset: int
    slot: int
    state: str
    age_s: float | None
    at_least_s: float | None
    first_emission_ms: int | None
    attempts: int
    root: str | None
    attempt: int | None
    root_age_s: float | None
    reason: str | None = None
    next_attempt_s: float | None = None
    idle_s: float | None = None

    @property
    def known_age_s(self) -> float | None:
        """How old the record is at least; None if nothing is known of its age."""
        return self.at_least_s if self.age_s is None else self.age_s


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A source partition: done below `frontier`, above it `done_above` and `pending`, then not emitted.

    `frontier` is committed; the spout reports the others, and may be further.
    """

    spout: str
    topic: str
    partition: int
    slot: int
    task: int
    log_start: int
    log_end: int
    frontier: int | None
    next_offset: int | None
    done_above: int | None
    pending: int | None
    lag: int
    held_by: PendingRecord | None
    held_s: float | None


@dataclass(frozen=True, slots=True)
class SpoutStatus:
    """A spout, by the reports of its processes and the sum of its partitions.

    `is_starting`: processes of it report, and none is at work yet.
    """

    name: str
    flow: str
    tasks: int
    processes: int
    pending: int | None
    pending_limit: int
    lag: int
    oldest_pending_s: float | None
    emitted_per_s: float | None
    completed_per_s: float | None
    failed_per_s: float | None
    timed_out: int
    replayed: int
    dead_lettered: int
    windows: dict[str, WindowFigures]
    breaker: BreakerStatus = field(default_factory=BreakerStatus)
    is_starting: bool = False

    @property
    def state(self) -> str:
        """What it does, in words."""
        more = ", starting" if self.is_starting else ", breaker open" if self.breaker.state == "open" else ""
        return f"{self.flow}{more}"


@dataclass(frozen=True, slots=True)
class InputStatus:
    """One partition that a bolt reads."""

    topic: str
    partition: int
    committed: int | None
    log_end: int
    lag: int


@dataclass(frozen=True, slots=True)
class BoltStatus:
    """A bolt: its group as the broker knows it, and the reports of its processes."""

    name: str
    group: str
    state: str
    members: int
    processes: int
    lag: int
    in_hand: int
    executed_per_s: float | None
    emitted_per_s: float | None
    failed_per_s: float | None
    inputs: tuple[InputStatus, ...]
    windows: dict[str, WindowFigures]


@dataclass(frozen=True, slots=True)
class AckerStatus:
    """One acker process, by its newest report."""

    instance: str
    partitions: int
    pending: int
    orphans: int
    folded_per_s: float | None
    lag: int
    cut_lag: int
    invalid: int
    table_bytes: int
    oldest_root: str | None
    oldest_root_age_s: float
    reported_s: float


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process, by its newest report; `is_silent` means no report for 20 s.

    `started_ms`, `host`, `pid` and the last failure are None if it does not report them.
    """

    role: str
    component: str
    instance: str
    host: str | None
    pid: int | None
    task: int | None
    partitions: int | None
    started_ms: int | None
    reported_ms: int
    reported_s: float
    is_silent: bool
    last_error: str | None
    last_error_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicRate:
    """A topic between two components, with the records a second written to it, or read by `reader`."""

    topic: str
    reader: str | None
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Stall:
    """A process whose loop is stalled, by its report: what its user code executes, and since when.

    `executing` is TOPIC/PARTITION/OFFSET of the input, None outside `execute`; `calling` is another method.
    """

    role: str
    component: str
    instance: str
    stalled_s: float
    stuck_after_s: float | None
    executing: str | None
    root: str | None
    calling: str | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """One thing that makes no progress, and what to look at; `kind` is one of docs/operate.md's list."""

    kind: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Limit:
    """The bolt that a spout's trees wait for, and how far it is behind; `text` says so in one line.

    `since_commit_s` is for how long it has committed nothing of the partition that holds it.
    """

    spout: str
    bolt: str
    partition: str
    behind_s: float
    since_commit_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Totals:
    """The strip at the top of the page."""

    emitted_per_s: float | None
    completed_per_s: float | None
    failed_per_s: float | None
    timed_out: int
    replayed: int
    pending: int | None
    oldest_pending_s: float | None
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that `acktree describe` and the page show."""

    topology: str
    version: int
    ackers_wanted: int
    message_timeout_s: float
    time_ms: int
    stuck: tuple[Stuck, ...]
    limits: tuple[Limit, ...]
    totals: Totals
    spouts: tuple[SpoutStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    bolts: tuple[BoltStatus, ...]
    acker_group: str
    acker_members: int
    acker_lag: int
    ackers: tuple[AckerStatus, ...]
    processes: tuple[ProcessStatus, ...]
    stalls: tuple[Stall, ...]
    edges: tuple[TopicRate, ...]
    oldest: tuple[PendingRecord, ...]
    reports: int
    invalid_reports: int
    unreported: tuple[str, ...]
    """What is not known, because no process reports it: sentences."""
    notes: tuple[str, ...] = field(default=())


def pending_document(status: Status, found: Sequence[PendingRecord]) -> dict[str, Any]:
    """Return what `pending list` says as JSON."""
    about = {"topology": status.topology, "total": status.totals.pending, "pending": to_json(found)}
    return {**about, "unreported": list(status.unreported), "notes": list(status.notes)}


def to_json(document: Any) -> Any:
    """Return a document as what `json.dumps` takes."""
    if isinstance(document, (tuple, list)):
        return [to_json(entry) for entry in document]
    return asdict(document)
