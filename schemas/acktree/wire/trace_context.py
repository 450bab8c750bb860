"""W3C trace context in record headers, and the span ids that follow from the log of a tree.

Invariant: nothing here raises on bytes from outside: malformed context counts as none. Span ids follow from
coordinates alone, so a later reader of the log gives a span the id that its children carry. Pure.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MAX_PARENT_BYTES = 512
"""A longer ``traceparent`` is none; that of version 00 has 55 bytes."""
MAX_STATE_BYTES = 512
"""A longer ``tracestate`` is not handed on: W3C lets a participant drop it."""

_PARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)


class TraceContext(NamedTuple):
    """The trace of a record: ids and flags in hexadecimal; ``parent`` is the header's value."""

    trace_id: str
    span_id: str
    flags: str
    parent: bytes
    state: bytes | None = None

    def child_of(self, span_id: str) -> bytes:
        """Return the ``traceparent`` of what a span of this trace has emitted."""
        return f"00-{self.trace_id}-{span_id}-{self.flags}".encode()


def parse_context(parent: bytes | str | None, state: bytes | str | None = None) -> TraceContext | None:
    """Return the trace context of two headers, None if ``parent`` is not a valid ``traceparent``.

    >>> parse_context(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").trace_id
    '4bf92f3577b34da6a3ce929d0e0e4736'
    >>> parse_context(b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01") is None
    True
    """
    parent, state = _as_bytes(parent), _as_bytes(state)
    if parent is None or len(parent) > MAX_PARENT_BYTES or (found := _PARENT.fullmatch(parent)) is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if rest and version == b"00":
        return None
    kept = state if state and len(state) <= MAX_STATE_BYTES else None
    return TraceContext(trace_id.decode(), span_id.decode(), flags.decode(), parent, kept)


def context_of(headers: Iterable[tuple[str, bytes | str | None]] | None) -> TraceContext | None:
    """Return the trace context in a record's headers, None if there is none; the last of a name counts."""
    parent: bytes | str | None = None
    state: bytes | str | None = None
    for name, value in headers or ():
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value
    return None if parent is None else parse_context(parent, state)


def has_context(headers: Iterable[tuple[str, object]]) -> bool:
    """Return whether headers name a trace, valid or not."""
    return any(name == TRACEPARENT for name, _ in headers)


def child_headers(
    context: TraceContext, parent: bytes, given: Iterable[tuple[str, bytes | str | None]] | None
) -> list[tuple[str, bytes | str | None]]:
    """Return the user's headers of a child, and its trace context: ``parent`` and the state of ``context``.

    The user's own ``traceparent`` wins. The input's, which a bolt that passes on all headers also passes on,
    is replaced: the child's parent is the span that emits it.
    """
    headers = list(given or ())
    own = [_as_bytes(value) for name, value in headers if name == TRACEPARENT]
    if own and own[-1] != context.parent:
        return headers
    kept = [pair for pair in headers if pair[0] != TRACEPARENT]
    kept.append((TRACEPARENT, parent))
    if context.state is not None and not any(name == TRACESTATE for name, _ in kept):
        kept.append((TRACESTATE, context.state))
    return kept


def span_of_execution(bolt: str, topic: str, partition: int, offset: int) -> str:
    """Return the id of the span in which a bolt handles the tuple at these coordinates.

    >>> span_of_execution("count", "words", 0, 7)
    'a9c88946e7cd619d'
    """
    return _span_id(f"execution\0{bolt}\0{topic}\0{partition}\0{offset}")


def span_of_emission(root: int) -> str:
    """Return the id of the span that a spout begins with an emission of a source record."""
    return _span_id(f"emission\0{root:016x}")


def trace_of_record(topology: str, slot: int, topic_id: str, offset: int) -> str:
    """Return the trace id of a source record that brings none."""
    text = f"trace\0{topology}\0{topic_id}\0{slot}\0{offset}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _span_id(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _as_bytes(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return value if isinstance(value, bytes) else None
