"""The tree of a source record as read from the log: its emissions, their messages, tuples and results. Pure.

Invariant: each part carries the coordinates of the record it was read from; a part that could not be read, or
is uncertain, says so in words. The shapes are the JSON of `acktree trace`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from acktree.console.view.cluster import Place
from acktree.console.view.records.open_edges import Certainty, find_open
from acktree.console.view.records.payloads import RecordPayload
from acktree.core.errors import UnknownVersion
from acktree.core.topology.registry import History
from acktree.wire.ids import consumer_edge, fnv1a64, origin_of
from acktree.wire.trace_context import TraceContext

CommittedAt = Callable[[str, Place], int | None]


@dataclass(frozen=True, slots=True)
class At:
    """The coordinates of a record, and when it was appended."""

    topic: str
    partition: int
    offset: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ControlEntry:
    """One entry of a control record about one root; `value` is in hexadecimal."""

    kind: str
    task: str
    value: str | None
    reason: str | None
    at: At


@dataclass(frozen=True, slots=True)
class TupleTrace:
    """The trace in the headers of a tuple: its trace context, and the roots of all its trees."""

    context: TraceContext | None
    roots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundTuple:
    """A tuple found on an output topic: its edge for the root, and the version that names its readers."""

    edge: int
    version: int
    at: At
    payload: RecordPayload | None
    trace: TupleTrace


@dataclass(frozen=True, slots=True)
class TupleReader:
    """A bolt that owns a consumer edge of a tuple; `behind` is how far its group is behind the tuple."""

    bolt: str
    edge: str
    state: str
    committed: int | None
    behind: int | None


@dataclass(frozen=True, slots=True)
class TracedTuple:
    """A tuple of the tree with its readers."""

    edge: str
    at: At
    readers: tuple[TupleReader, ...]
    payload: RecordPayload | None = None


@dataclass(frozen=True, slots=True)
class TraceResult:
    """The result that an acker sent to the spout."""

    kind: str
    acker: int
    task: str | None
    reason: str | None
    at: At


@dataclass(frozen=True, slots=True)
class TracedEmission:
    """One emission of the record: `open_value` is the XOR of its messages, "0" when the tree is done."""

    root: str
    run: int
    attempt: int
    generation: int
    version: int | None
    acker_partition: int | None
    init: ControlEntry | None
    messages: tuple[ControlEntry, ...]
    tuples: tuple[TracedTuple, ...]
    result: TraceResult | None
    open_value: str
    certainty: str
    state: str
    text: str


@dataclass(slots=True)
class RootFindings:
    """The findings of a search about one root, values as numbers."""

    root: int
    version: int | None = None
    partition: int | None = None
    inits: list[tuple[int, ControlEntry]] = field(default_factory=list)
    messages: list[tuple[int, ControlEntry]] = field(default_factory=list)
    tuples: list[FoundTuple] = field(default_factory=list)
    results: list[TraceResult] = field(default_factory=list)


def hexadecimal(number: int) -> str:
    return f"{number:016x}"


def make_emission(
    gathered: RootFindings, history: History, committed: CommittedAt, whole: bool
) -> TracedEmission:
    """Return an emission with its open edges computed; ``whole``: nothing was left unread."""
    origin = origin_of(gathered.root)
    inits, messages, tuples = gathered.inits, gathered.messages, gathered.tuples
    total = inits[0][0] if inits else 0
    for value, _ in messages:
        total ^= value
    edges, owners = edges_of(gathered.root, tuples, history)
    commits = [committed(bolt, (found.at.topic, found.at.partition)) for found, bolt in owners]
    likely = [
        index
        for index, ((found, _), offset) in enumerate(zip(owners, commits, strict=True))
        if offset is None or offset <= found.at.offset
    ]
    opened = find_open(total, edges, likely)
    result = gathered.results[0] if gathered.results else None
    failed = any(message.kind == "fail" for _, message in messages)
    failing = {message.task.partition("@")[0] for _, message in messages if message.kind == "fail"}
    readers = [
        _reader(found, bolt, edge, index in opened.indexes, opened.certainty, offset, bolt in failing)
        for index, ((found, bolt), edge, offset) in enumerate(zip(owners, edges, commits, strict=True))
    ]
    shown = []
    for found in sorted(tuples, key=lambda each: (each.at.time_ms, each.at.topic, each.at.offset)):
        mine = tuple(r for r, (owner, _) in zip(readers, owners, strict=True) if owner is found)
        shown.append(TracedTuple(hexadecimal(found.edge), found.at, mine, found.payload))
    state = _state(result, bool(inits), total, failed)
    repeated = [message for _, message in inits[1:]]
    return TracedEmission(
        root=hexadecimal(gathered.root),
        run=origin.run,
        attempt=origin.attempt,
        generation=origin.generation,
        version=gathered.version,
        acker_partition=gathered.partition,
        init=inits[0][1] if inits else None,
        messages=(*repeated, *(message for _, message in messages)),
        tuples=tuple(shown),
        result=result,
        open_value="0" if not total else hexadecimal(total),
        certainty=opened.certainty.value,
        state=state,
        text=_explain(state, opened.certainty, shown, bool(inits), whole),
    )


def edges_of(
    root: int, tuples: Sequence[FoundTuple], history: History
) -> tuple[list[int], list[tuple[FoundTuple, str]]]:
    """Return every consumer edge of the tuples found, and whose it is."""
    edges, owners = [], []
    for found in tuples:
        try:
            readers = history.at(found.version).readers_of(found.at.topic)
        except UnknownVersion:
            continue
        for bolt in readers:
            edges.append(consumer_edge(found.edge, fnv1a64(bolt)))
            owners.append((found, bolt))
    return edges, owners


def _reader(
    found: FoundTuple,
    bolt: str,
    edge: int,
    is_open: bool,
    certainty: Certainty,
    committed: int | None,
    has_failed: bool,
) -> TupleReader:
    """Return the state of one edge; a bolt that has failed a tuple of the tree has failed its open one."""
    behind = None if committed is None else max(0, found.at.offset + 1 - committed)
    if certainty is not Certainty.EXACT:
        state = "not known" if behind == 0 else "probably open"
    elif not is_open:
        state = "done"
    elif behind is None or behind:
        state = "open"
    else:
        state = "failed" if has_failed else "unmatched"
    return TupleReader(bolt, hexadecimal(edge), state, committed, behind)


def _state(result: TraceResult | None, begun: bool, total: int, failed: bool) -> str:
    if result is not None:
        return result.kind
    if not begun:
        return "no init"
    if failed:
        return "failed, not yet reported"
    return "open" if total else "done, not yet reported"


def _explain(
    state: str, certainty: Certainty, tuples: Sequence[TracedTuple], begun: bool, whole: bool
) -> str:
    """Return one or two sentences on what the tree waits for."""
    if state == "acked":
        return "every edge was consumed"
    if state == "failed":
        failed = [
            f"bolt {reader.bolt} failed {_name(found)}"
            for found in tuples
            for reader in found.readers
            if reader.state == "failed"
        ]
        return "; ".join(failed[:3]) or ("a task failed a tuple of the tree")
    left = "" if whole else " Not everything was read; see notes."
    waiting = [(found, reader) for found in tuples for reader in found.readers if reader.state == "open"]
    late = [(found, reader) for found in tuples for reader in found.readers if reader.state == "unmatched"]
    sentences = []
    for found, reader in waiting[:3]:
        position = f"is {reader.behind} behind"
        if reader.committed is None:
            position = "has committed nothing there"
        sentences.append(f"waits for bolt {reader.bolt} to ack {_name(found)}: its group {position}")
    if len(waiting) > 3:
        sentences.append(f"and {len(waiting) - 3} more tuples")
    for found, reader in late[:3]:
        sentences.append(
            f"bolt {reader.bolt} is past {_name(found)}, but a message of that edge is missing: "
            "its emitter's ack, or the bolt's own (a process died before its ack, or holds the tuple)"
        )
    if certainty is Certainty.AMBIGUOUS:
        sentences.append(
            "too many tuples were found to compute which edges are open; "
            "the states follow from the groups' positions"
        )
    if certainty is Certainty.MISSING:
        why = ": retention, or it was never written" if whole else ""
        sentences.append(f"an open edge belongs to a tuple that was not found{why}")
    if not begun:
        sentences.append(
            "no init was found: the stage has not sent it yet, died before it, or retention removed it"
        )
    text = "; ".join(sentences) or {"timed out": "its edges were not all consumed in time"}.get(
        state, "nothing is open"
    )
    return text + "." + left


def _name(found: TracedTuple) -> str:
    return f"{found.at.topic}/{found.at.partition}/{found.at.offset}"


def by_column(tuples: Sequence[TracedTuple]) -> Mapping[str, list[TracedTuple]]:
    """Return the tuples by topic, in the order of their first one."""
    columns: dict[str, list[TracedTuple]] = {}
    for found in tuples:
        columns.setdefault(found.at.topic, []).append(found)
    return columns
