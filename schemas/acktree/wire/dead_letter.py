"""The headers of a dead letter: those that its writer adds to a source record, and those that close one.

Invariant: every header is written for every dead letter, empty if unknown: a record that went through a
dead-letter topic before has older ones, and the last ones count. The ``kafka_dlt-*`` headers are those that
existing tools know (Spring Kafka's names and encodings). Pure.
"""

from dataclasses import dataclass

from acktree.wire.control_records import Cause, FailedTuple

Headers = list[tuple[str, bytes | None]]

ORIGIN, SPOUT = "acktree-origin", "acktree-spout"
"""One of them is on every dead letter: of a source record, or of a Python spout's message."""
FAILED_TUPLE, FAILED_VALUE = "acktree-failed-tuple", "acktree-failed-value"
FAILED_VALUE_NOTE = "acktree-failed-value-note"
STACK = "kafka_dlt-exception-stacktrace"
HEADERS_NOTE = "acktree-headers-note"
"""Says in a sentence why a dead letter has none of the headers of its source record."""
LEFT_OUT = "acktree-left-out"
"""Says in a sentence why a dead letter has neither key, value nor headers of its source record."""
CLOSES, CORRECTED_AS = "acktree-closes", "acktree-corrected-as"
"""On a record of the dead-letter topic that closes a dead letter: which one, and what replaces its record."""
CORRECTS = "acktree-corrects"
"""On a source record: the coordinates of the one that it replaces."""
MAX_FAILED_VALUE_BYTES = 16_384
OWN_HEADERS = frozenset(
    {
        *(
            f"acktree-{name}"
            for name in ("attempts", "cause", "task", "reason", "first-time-ms", "last-time-ms")
        ),
        *(f"acktree-{name}" for name in ("message-id", "topic", "tuple")),
        *(ORIGIN, SPOUT, FAILED_TUPLE, FAILED_VALUE_NOTE, HEADERS_NOTE, LEFT_OUT),
        *(CORRECTS, CLOSES, CORRECTED_AS),
    }
)
"""Those that say nothing of what records hold; others, and FAILED_VALUE, are payload."""


@dataclass(frozen=True, slots=True)
class FailedValue:
    """The value of the failed tuple; ``note`` says in a sentence what is missing of it, "" if it is whole."""

    value: bytes | None = None
    note: str = ""

    @classmethod
    def of(cls, value: bytes | None) -> "FailedValue":
        """Return a value up to its limit.

        >>> FailedValue.of(b"a"), FailedValue.of(b"a" * 20_000).note
        (FailedValue(value=b'a', note=''), 'the first 16,384 of 20,000 bytes')
        """
        if value is None:
            return cls(None, "null")
        if len(value) <= MAX_FAILED_VALUE_BYTES:
            return cls(value)
        note = f"the first {MAX_FAILED_VALUE_BYTES:,} of {len(value):,} bytes"
        return cls(value[:MAX_FAILED_VALUE_BYTES], note)


@dataclass(frozen=True, slots=True)
class DeadLetterFields:
    """A source record that is given up; times in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    is_log_append_time: bool
    group: str
    attempts: int
    cause: Cause
    task: str
    reason: str
    first_failed_ms: int
    last_time_ms: int
    failed_tuple: FailedTuple | None = None
    failed_value: FailedValue = FailedValue()
    left_out: str = ""


def why_headers(
    attempts: int, cause: Cause, task: str, reason: str, first_failed_ms: int, last_time_ms: int
) -> Headers:
    """Return what every dead letter says of its failures; times in ms since 1970."""
    return [
        ("acktree-attempts", str(attempts).encode()),
        ("acktree-cause", cause.name.encode()),
        ("acktree-task", task.encode()),
        ("acktree-reason", reason.encode("utf-8", "backslashreplace")),
        ("acktree-first-time-ms", str(first_failed_ms).encode()),
        ("acktree-last-time-ms", str(last_time_ms).encode()),
    ]


def headers_of_tools(group: str, cause: Cause, reason: str) -> Headers:
    """Return what every dead letter says to tools that know the ``kafka_dlt-*`` headers."""
    return [
        ("kafka_dlt-original-consumer-group", group.encode()),
        ("kafka_dlt-exception-fqcn", f"acktree.{cause.name}".encode()),
        ("kafka_dlt-exception-message", reason.encode("utf-8", "backslashreplace")),
    ]


def failed_tuple_headers(failed: FailedTuple | None, value: FailedValue, reason: str) -> Headers:
    """Return what every dead letter says of the tuple that failed, each empty where nothing is known."""
    place = "" if failed is None else f"{failed.topic}/{failed.partition}/{failed.offset}"
    stack = "" if failed is None or not failed.stack else f"{failed.stack}{reason}\n"
    return [
        (FAILED_TUPLE, place.encode()),
        (FAILED_VALUE, value.value),
        (FAILED_VALUE_NOTE, value.note.encode()),
        (STACK, stack.encode("utf-8", "replace")),
    ]


def dead_letter_headers(fields: DeadLetterFields) -> Headers:
    """Return the headers that follow those of the source record."""
    place = f"{fields.topic}/{fields.partition}/{fields.offset}"
    return [
        (ORIGIN, place.encode()),
        (LEFT_OUT, fields.left_out.encode()),
        *why_headers(
            fields.attempts,
            fields.cause,
            fields.task,
            fields.reason,
            fields.first_failed_ms,
            fields.last_time_ms,
        ),
        *failed_tuple_headers(fields.failed_tuple, fields.failed_value, fields.reason),
        ("kafka_dlt-original-topic", fields.topic.encode()),
        ("kafka_dlt-original-partition", fields.partition.to_bytes(4, "big")),
        ("kafka_dlt-original-offset", fields.offset.to_bytes(8, "big")),
        ("kafka_dlt-original-timestamp", max(fields.timestamp_ms, 0).to_bytes(8, "big")),
        (
            "kafka_dlt-original-timestamp-type",
            b"LogAppendTime" if fields.is_log_append_time else b"CreateTime",
        ),
        *headers_of_tools(fields.group, fields.cause, fields.reason),
    ]


def source_headers(headers: Headers) -> Headers:
    """Return the headers of the source record of a dead letter: those before what its writer added.

    >>> source_headers([("a", b"1"), ("acktree-origin", b"t/0/1"), ("acktree-cause", b"FAILED")])
    [('a', b'1')]
    """
    added = max((at for at, (name, _) in enumerate(headers) if name == ORIGIN), default=len(headers))
    return headers[:added]
