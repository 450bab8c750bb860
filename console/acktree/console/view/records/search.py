"""Searches the log for the records about one source record.

A root id is a bijection of (slot, generation, offset), so no generation is guessed: the root ids that control
records hold are inverted, and those of the record's slot and offset are its emissions. Then only partition
root mod n of `T.ack` is searched, for the eight bytes of the root, before anything is decoded.
Invariant: reading stops at a deadline, and the notes name the unread part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from confluent_kafka import Message as Record
from numpy.typing import NDArray

from acktree.console.view.records.completeness import is_complete, what_is_missing
from acktree.console.view.records.tree import RootFindings, TraceResult
from acktree.console.view.records.tree_reader import MARGIN_MS, TreeReader, add_init, at_of
from acktree.core.topology.registry import Published, Slot
from acktree.wire.codec import decode_ack_init, decode_result_record
from acktree.wire.control_records import AckInit, Result
from acktree.wire.errors import MalformedRecord
from acktree.wire.ids import IdArray, origin_of, root_id, unmix, unmix_array

CHUNK = 2_000
_BUT_GENERATION = ~(0xFFF << 40) & (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TraceTarget:
    """The slot and offset to trace, which a root up to ``block`` - 1 offsets before may stand for."""

    slot: Slot
    offset: int
    block: int = 1


@dataclass(slots=True, kw_only=True)
class Search(TreeReader):
    """Reads the trees of one record."""

    target: TraceTarget
    spout_tasks: set[int] = field(default_factory=set)
    """To which tasks inits ask for the result."""


def may_be_emissions(target: TraceTarget, roots: IdArray) -> NDArray[np.bool_]:
    """Return which of many roots may be emissions of the target, of whatever generation."""
    last = unmix(root_id(target.slot.slot, 1 << 4, target.offset)) & _BUT_GENERATION
    first = last - min(target.block - 1, target.offset)
    places = unmix_array(roots) & np.uint64(_BUT_GENERATION)
    found: NDArray[np.bool_] = (np.uint64(first) <= places) & (places <= np.uint64(last))
    return found


def drop_other_blocks(search: Search) -> None:
    """Discard the emissions of records and blocks before the target's.

    A record is in its block in a first emission alone. Such a root says where its block begins, not where it
    ends: in one run that is where the next one begins.
    """
    origins = {root: origin_of(root) for root in search.found}
    last_of_run: dict[int, int] = {}
    for origin in origins.values():
        if not origin.attempt:
            last_of_run[origin.run] = max(origin.offset, last_of_run.get(origin.run, 0))
    for root, origin in origins.items():
        if origin.offset != (search.target.offset if origin.attempt else last_of_run[origin.run]):
            del search.found[root]


def find_results(search: Search, topology: Published) -> None:
    """Read the result topics of the tasks that inits name, and of those that have owned the slot."""
    slot, versions = search.target.slot, search.cluster.history.versions.values()
    owners = {v.task_of(slot) for v in versions if slot.spout in v.spout_tasks and slot in v.slots}
    tasks = sorted(search.spout_tasks | owners)
    for batch in search.scan(search.spans([topology.result_topic(task) for task in tasks])):
        for start in range(0, len(batch), CHUNK):
            _match_results(search, batch[start : start + CHUNK])


def _match_results(search: Search, records: list[Record]) -> None:
    decoded = []
    for record in records:
        try:
            result = decode_result_record(record.value() or b"")
        except MalformedRecord:
            continue
        if isinstance(result, Result):
            decoded.append((record, result))
    for record, result, root in _matches(search.target, decoded, lambda result: result.acked):
        _add_result(search, root, TraceResult("acked", result.acker, None, None, at_of(record)))
    for record, result in decoded:
        for failure in result.failed:
            if may_be_emissions(search.target, np.array([failure.root], np.uint64))[0]:
                kind = failure.cause.name.lower().replace("_", " ")
                source = (failure.task or None, failure.reason or None)
                _add_result(search, failure.root, TraceResult(kind, result.acker, *source, at_of(record)))


Decoded = TypeVar("Decoded", Result, AckInit)


def _matches(
    target: TraceTarget, decoded: list[tuple[Record, Decoded]], roots_of: Callable[[Decoded], IdArray]
) -> Iterator[tuple[Record, Decoded, int]]:
    """Yield the records that name an emission of the target, with its root; all are inverted in one go."""
    if not decoded:
        return
    arrays = [roots_of(each) for _, each in decoded]
    roots = np.concatenate(arrays)
    behind: NDArray[np.int64] = np.cumsum([len(array) for array in arrays])
    for row in np.flatnonzero(may_be_emissions(target, roots)).tolist():
        record, each = decoded[int(np.searchsorted(behind, row, "right"))]
        yield record, each, int(roots[row])


def _add_result(search: Search, root: int, result: TraceResult) -> None:
    search.findings_of(root).results.append(result)


def find_inits(search: Search, topology: Published) -> None:
    """Read the inits of all partitions: the generations that are out there are not known before."""
    for batch in search.scan(search.spans([topology.ack_init_topic])):
        for start in range(0, len(batch), CHUNK):
            _match_inits(search, batch[start : start + CHUNK])


def _match_inits(search: Search, records: list[Record]) -> None:
    decoded = []
    for record in records:
        try:
            decoded.append((record, decode_ack_init(record.value() or b"")))
        except MalformedRecord:
            continue
    for record, init, root in _matches(search.target, decoded, lambda init: init.inits["root"]):
        search.spout_tasks.add(init.spout_task)
        value = int(init.inits["value"][init.inits["root"] == root][0])
        add_init(search.findings_of(root), init, value, record)


def find_acks(search: Search, topology: Published) -> None:
    """Search the partition of each root, from before its init until its result."""
    for root, gathered in search.found.items():
        places = search.partitions_of(topology.ack_topic, [root], gathered.version)
        search.read_acks([root], search.spans_of(places, *_times(gathered, topology)))


def _times(gathered: RootFindings, topology: Published) -> tuple[int | None, int | None]:
    """Return the append times between which messages of a root may lie; acks may precede the init."""
    inits, results = gathered.inits, gathered.results
    from_ms = until_ms = None
    if inits:
        from_ms = int(inits[0][1].at.time_ms - 1000 * topology.orphan_timeout_s)
    if results:
        until_ms = int(results[-1].at.time_ms + MARGIN_MS + 1000 * topology.message_timeout_s)
    return from_ms, until_ms


def find_tuples(search: Search, topology: Published) -> None:
    """Search the emitted topics for headers that name one of the roots, first while its tree was under way.

    A tuple may have any time, such as its record's. So unless the tuples that were found add up, those behind
    are read as well, and if some are known to be missing those in front, as long as time is left.
    """
    if not search.found:
        return
    bounds = [_times(gathered, topology) for gathered in search.found.values()]
    begins = [first for first, _ in bounds]
    until = [last for _, last in bounds]
    from_ms = None if None in begins else min(first for first in begins if first is not None)
    until_ms = None if None in until else max(last for last in until if last is not None)
    search.read_tuples(from_ms, until_ms)
    spout, history, found = search.target.slot.spout, search.cluster.history, search.found.values()
    if until_ms is not None and not all(is_complete(each, history, spout) for each in found):
        search.read_later_tuples()
    if (
        from_ms is not None
        and search.since_ms is None
        and any(what_is_missing(each, history, spout, is_acked(each)) for each in found)
    ):
        search.read_earlier_tuples()


def is_acked(gathered: RootFindings) -> bool:
    """Return whether the result of a root is that it is done."""
    return bool(gathered.results) and gathered.results[0].kind == "acked"
