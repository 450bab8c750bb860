"""The shapes that command line and page share; their JSON is these fields, as docs/operate.md lists them.

Invariant: plain data. Times are milliseconds since 1970 (`_ms`), durations seconds (`_s`) or milliseconds
where the name says so, rates per second (`_per_s`), offsets as Kafka counts them: `frontier` and ends are
exclusive. None is "not known".
"""

from dataclasses import asdict, dataclass, field
from typing import Any


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
    """A source record that is emitted and not done; `root` and `age_s` are those of its newest emission."""

    spout: str
    topic: str
    partition: int
    offset: int
    slot: int
    state: str
    age_s: float | None
    root: str | None
    attempt: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A source partition: done below `frontier`, above it `done_above` and `pending`, then not emitted."""

    spout: str
    topic: str
    partition: int
    slot: int
    task: int
    log_start: int
    log_end: int
    frontier: int | None
    next_offset: int | None
    done_above: int
    pending: int
    lag: int
    held_by: PendingRecord | None
    held_s: float | None


@dataclass(frozen=True, slots=True)
class SpoutStatus:
    """A spout, by the reports of its processes and the sum of its partitions."""

    name: str
    tasks: int
    processes: int
    pending: int
    lag: int
    oldest_pending_s: float | None
    emitted_per_s: float
    completed_per_s: float
    failed_per_s: float
    timed_out: int
    replayed: int
    dead_lettered: int
    windows: dict[str, WindowFigures]


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
    executed_per_s: float
    emitted_per_s: float
    failed_per_s: float
    inputs: tuple[InputStatus, ...]
    windows: dict[str, WindowFigures]


@dataclass(frozen=True, slots=True)
class AckerStatus:
    """One acker process, by its newest report."""

    instance: str
    partitions: int
    pending: int
    orphans: int
    folded_per_s: float
    lag: int
    cut_lag: int
    set_aside: int
    table_bytes: int
    oldest_root: str | None
    oldest_root_age_s: float
    reported_s: float


@dataclass(frozen=True, slots=True)
class TopicRate:
    """A topic between two components, with the records a second written to it, or read by `reader`."""

    topic: str
    reader: str | None
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """One thing that makes no progress, and what to look at; `kind` is one of docs/operate.md's list."""

    kind: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Totals:
    """The strip at the top of the page."""

    emitted_per_s: float
    completed_per_s: float
    failed_per_s: float
    timed_out: int
    replayed: int
    pending: int
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
    totals: Totals
    spouts: tuple[SpoutStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    bolts: tuple[BoltStatus, ...]
    acker_group: str
    acker_members: int
    acker_lag: int
    ackers: tuple[AckerStatus, ...]
    edges: tuple[TopicRate, ...]
    oldest: tuple[PendingRecord, ...]
    reports: int
    garbage: int
    notes: tuple[str, ...] = field(default=())


def to_json(document: Any) -> Any:
    """Return a document as what `json.dumps` takes."""
    if isinstance(document, (tuple, list)):
        return [to_json(entry) for entry in document]
    return asdict(document)
