"""Makes the spans of a tree read from the log: its emission, and an execution of each tuple by each bolt.

Invariant: ids follow from the log alone, so a tree that is exported twice has the same spans. Attributes say
what is uncertain: an end or a parent that the log does not name. Pure; knows no OpenTelemetry.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from acktree.console.traces.finished import ACKED
from acktree.console.traces.trees import ReadTree, SourceRecord
from acktree.console.view.records.tree import ControlEntry, TracedTuple, TupleReader
from acktree.core.errors import UnknownVersion
from acktree.core.topology.registry import History, Published
from acktree.wire.ids import origin_of
from acktree.wire.trace_context import (
    TraceContext,
    span_of_emission,
    span_of_execution,
    trace_of_record,
)

MAX_LINKS = 100
Attribute = str | int | bool


@dataclass(frozen=True, slots=True)
class SpanLink:
    """A link to another span; ``why`` is attempt, anchor or context."""

    trace_id: str
    span_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Span:
    """One span, times in ms since 1970; ``parent_id`` "" for none, ``error`` why it failed, or ""."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    is_emission: bool
    start_ms: int
    end_ms: int
    error: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: tuple[SpanLink, ...] = ()


def trace_id_of(
    topology: str, root: int, source: SourceRecord, contexts: Iterable[TraceContext | None]
) -> str:
    """Return the trace id of a root's record: its own, else its first tuples', else one of its place."""
    if source.context is not None:
        return source.context.trace_id
    for context in contexts:
        if context is not None:
            return context.trace_id
    topic_id = source.slot.topic_id if source.slot is not None else ""
    run = 0 if source.slot is not None and source.slot.topic else origin_of(root).run
    return trace_of_record(topology, origin_of(root).slot, f"{topic_id}.{run}", source.offset)


def make_spans(tree: ReadTree, history: History, sources: Mapping[int, SourceRecord]) -> list[Span]:
    """Return the spans of a tree; ``sources`` are the records of other roots that its tuples name."""
    return _Maker(tree, history, sources).spans()


class _Maker:
    def __init__(self, tree: ReadTree, history: History, sources: Mapping[int, SourceRecord]) -> None:
        self._tree, self._history, self._sources = tree, history, sources
        self._topology: Published = history.latest
        self._root = tree.finished.root
        self._emission_id = span_of_emission(self._root)
        version = tree.emission.version
        try:
            self._at = history.latest if version is None else history.at(version)
        except UnknownVersion:
            self._at = history.latest
        slot = tree.source.slot
        self._spout = slot.spout if slot is not None else "spout"
        spout = self._at.spouts.get(self._spout)
        self._from_spout = set(spout.emits) if spout is not None else set()
        self._tuples = list(tree.emission.tuples)
        first = (self._context(each) for each in self._tuples if each.at.topic in self._from_spout)
        self._trace_id = trace_id_of(self._topology.name, self._root, tree.source, first)
        self._executions = {
            span_of_execution(reader.bolt, each.at.topic, each.at.partition, each.at.offset): (each, reader)
            for each in self._tuples
            for reader in each.readers
        }

    def _context(self, found: TracedTuple) -> TraceContext | None:
        said = self._tree.tuples.get((found.at.topic, found.at.partition, found.at.offset))
        return None if said is None else said.context

    def spans(self) -> list[Span]:
        return [self._emission(), *(self._execution(*item) for item in self._executions.items())]

    def _emission(self) -> Span:
        tree, finished, source = self._tree, self._tree.finished, self._tree.source
        begun = [each.at.time_ms for each in self._tuples]
        if tree.emission.init is not None:
            begun.append(tree.emission.init.at.time_ms)
        origin = origin_of(self._root)
        topic = source.slot.topic if source.slot is not None else ""
        attributes: dict[str, Attribute] = {
            "acktree.topology": self._topology.name,
            "acktree.root": f"{self._root:016x}",
            "acktree.run": origin.run,
            "acktree.attempt": origin.attempt,
            "acktree.result": finished.kind,
            "acktree.complete": not tree.incomplete,
        }
        if topic and source.slot is not None:
            attributes |= _place_attributes(topic, source.slot.partition, source.offset)
        if tree.incomplete:
            attributes["acktree.incomplete.reason"] = "; ".join(tree.incomplete)
        if finished.task:
            attributes["acktree.task"] = finished.task
        error = "" if finished.kind == ACKED else finished.reason or finished.kind
        links = [
            SpanLink(self._trace_id, span_of_emission(other), "attempt") for other in tree.others[:MAX_LINKS]
        ]
        parent = source.context.span_id if source.context is not None else self._given_parent()
        return Span(
            service=self._spout,
            name=f"{topic or self._spout} emit",
            trace_id=self._trace_id,
            span_id=self._emission_id,
            parent_id=parent,
            is_emission=True,
            start_ms=min([*begun, finished.at.time_ms]),
            end_ms=finished.at.time_ms,
            error=error,
            attributes=attributes,
            links=tuple(links),
        )

    def _given_parent(self) -> str:
        """Return the span that a spout in Python has named as the parent of its tuples."""
        slot = self._tree.source.slot
        if slot is None or slot.topic:
            return ""
        contexts = [self._context(each) for each in self._tuples if each.at.topic in self._from_spout]
        given = {context.span_id for context in contexts if context is not None}
        return given.pop() if len(given) == 1 else ""

    def _execution(self, span_id: str, execution: tuple[TracedTuple, TupleReader]) -> Span:
        found, reader = execution
        at, finished = found.at, self._tree.finished
        attributes: dict[str, Attribute] = {
            "acktree.bolt": reader.bolt,
            "acktree.state": reader.state,
            **_place_attributes(at.topic, at.partition, at.offset),
        }
        parent_id = self._parent_of(found, attributes)
        end, is_exact = self._end_of(found, reader)
        if not is_exact:
            attributes["acktree.end"] = "not exact"
        error = ""
        if end is not None and end.kind == "fail":
            error = end.reason or "failed"
        elif end is None and finished.kind != ACKED:
            error = f"not acked when the tree was {finished.kind}"
        if end is not None:
            attributes["acktree.task"] = end.task
        end_ms = finished.at.time_ms if end is None else end.at.time_ms
        return Span(
            service=reader.bolt,
            name=f"{at.topic} process",
            trace_id=self._trace_id,
            span_id=span_id,
            parent_id=parent_id,
            is_emission=False,
            start_ms=at.time_ms,
            end_ms=max(end_ms, at.time_ms),
            error=error,
            attributes=attributes,
            links=tuple(self._links_of(found)),
        )

    def _parent_of(self, found: TracedTuple, attributes: dict[str, Attribute]) -> str:
        """Return the parent that a tuple names, else the only span that can have emitted it."""
        context, source = self._context(found), self._tree.source.context
        if context is not None and context.trace_id == self._trace_id:
            named = context.span_id
            if named == self._emission_id or named in self._executions:
                return named
            if (source is None or named != source.span_id) and found.at.topic not in self._from_spout:
                return named  # a span of the user's own
        # Being first by the log's times proves nothing: producers may set them.
        candidates = [
            span_id
            for span_id, (_, reader) in self._executions.items()
            if self._emits(reader.bolt, found.at.topic)
        ]
        if found.at.topic in self._from_spout:
            candidates.append(self._emission_id)
        if len(candidates) == 1:
            return candidates[0]
        attributes["acktree.parent"] = "not known: one of several"
        return self._emission_id

    def _emits(self, bolt: str, topic: str) -> bool:
        table = self._at.bolts.get(bolt)
        return table is not None and topic in table.emits

    def _end_of(self, found: TracedTuple, reader: TupleReader) -> tuple[ControlEntry | None, bool]:
        """Return the message that ended an execution, and whether it is certain that it is this one's.

        Acks name their tasks, not their tuples: where a bolt has one tuple of the tree it is certain.
        """
        mine = [
            message
            for message in self._tree.emission.messages
            if message.kind in ("ack", "fail") and message.task.partition("@")[0] == reader.bolt
        ]
        tuples = sum(each.bolt == reader.bolt for _, each in self._executions.values())
        if tuples == 1:
            return (mine[-1] if mine else None), len(mine) <= 1
        if reader.state != "done":
            fails = [message for message in mine if message.kind == "fail"]
            unfinished = sum(
                each.bolt == reader.bolt and each.state != "done" for _, each in self._executions.values()
            )
            return (fails[0] if fails else None), unfinished == len(fails)
        after = [
            message for message in mine if message.kind == "ack" and message.at.time_ms >= found.at.time_ms
        ]
        return (min(after, key=lambda message: message.at.time_ms) if after else None), False

    def _links_of(self, found: TracedTuple) -> Iterable[SpanLink]:
        """Yield links to the other trees of a tuple, and to the trace that the tuple itself names."""
        said = self._tree.tuples.get((found.at.topic, found.at.partition, found.at.offset))
        if said is None:
            return
        for other in [root for root in dict.fromkeys(said.roots) if root != self._root][:MAX_LINKS]:
            source = self._sources.get(other)
            if source is not None and source.slot is not None and source.slot.topic:
                trace_id = trace_id_of(self._topology.name, other, source, ())
                yield SpanLink(trace_id, span_of_emission(other), "anchor")
        if said.context is not None and said.context.trace_id != self._trace_id:
            yield SpanLink(said.context.trace_id, said.context.span_id, "context")


def _place_attributes(topic: str, partition: int, offset: int) -> dict[str, Attribute]:
    return {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
        "messaging.kafka.offset": offset,
    }


def other_roots(trees: Iterable[ReadTree]) -> set[int]:
    """Return the roots of other trees that tuples of these belong to as well."""
    return {
        root
        for tree in trees
        for said in tree.tuples.values()
        for root in said.roots[:MAX_LINKS]
        if root != tree.finished.root
    }
