"""The trace context of tuples: what their children carry, and what log lines say of them.

Invariant: the parent of a child is the execution that emits it, named by its coordinates; of several parents
the first one with a trace gives it. A ``traceparent`` that the bolt sets wins.
"""

from collections.abc import Iterable
from typing import Any

from acktree.producers.columns import Pairs
from acktree.producers.tuples import Record, Tuple
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import read_headers
from acktree.wire.trace_context import TraceContext, child_headers, context_of, span_of_execution


def context_of_tuple(tup: Tuple) -> TraceContext | None:
    """Return the trace context in the headers of a tuple's record."""
    return _context_of_record(tup._record)


def _context_of_record(record: Record) -> TraceContext | None:
    try:
        return context_of(read_headers(record))
    except MalformedRecord:
        return None


def handed_on(bolt: str, parents: Iterable[Tuple], headers: Pairs | None) -> Pairs | None:
    """Return the headers of a child of some tuples, with the trace context of the first one that has one."""
    for parent in parents:
        if (context := context_of_tuple(parent)) is not None:
            span_id = span_of_execution(bolt, parent.topic, parent.partition, parent.offset)
            return child_headers(context, context.child_of(span_id), headers)
    return headers


def about(tup: Tuple, action: str) -> dict[str, Any]:
    """Return the ``extra`` of a log line about a tuple: its action, and its trace id if it has one."""
    return about_record(tup._record, action)


def about_record(record: Record, action: str) -> dict[str, Any]:
    """Return the ``extra`` of a log line about a record that may be no tuple."""
    context = _context_of_record(record)
    return {"action": action} if context is None else {"action": action, "trace_id": context.trace_id}


def named(tup: Tuple) -> str:
    """Return a tuple as log lines name it, with its trace id if it has one."""
    context = context_of_tuple(tup)
    return repr(tup) if context is None else f"{tup!r} of trace {context.trace_id}"
