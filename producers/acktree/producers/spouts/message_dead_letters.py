"""Writes a given-up message of a Python spout to ``T.dead-letter``: each of its tuples, as emitted.

Invariant: a message counts as written when the broker has all of its tuples. The headers are those of a
source record's dead letter, empty where a message has no value: older ones of its tuples do not count.
"""

from collections.abc import Callable, Hashable

from acktree.core import world
from acktree.producers.collecting.arithmetic.pending import Message
from acktree.producers.columns import NO_TIMESTAMP, ProduceConfirmed
from acktree.producers.errors import TooLarge
from acktree.producers.spout import Failure
from acktree.wire.dead_letter import (
    ORIGIN,
    SPOUT,
    FailedValue,
    Headers,
    failed_tuple_headers,
    headers_of_tools,
    why_headers,
)

MAX_ID_CHARACTERS = 1_000


class MessageDeadLetters:
    """Writes the dead letters of one spout task; ``topic`` returns where they go."""

    def __init__(self, spout: str, produce: ProduceConfirmed, topic: Callable[[], str], group: str) -> None:
        self._spout, self._produce, self._topic, self._group = spout, produce, topic, group
        self._written: list[tuple[Message, Failure]] = []

    def write(self, message: Message, failure: Failure, now_s: float) -> None:
        """Queue the tuples of a message; it is written when the broker has confirmed all of them.

        What is too large for the topic with the stack trace goes without it.

        Raises:
            TooLarge: a tuple with its headers is larger than the topic accepts.
            DeliveryFailed: see its docstring.
        """
        try:
            self._write(message, failure, now_s)
        except TooLarge:
            if failure.failed_tuple is None:
                raise
            self._write(message, failure.without_tuple(), now_s)

    def _write(self, message: Message, failure: Failure, now_s: float) -> None:
        """Queue the tuples, the largest first: if one is too large, none is queued."""
        left = len(message.tuples)

        def on_delivery() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._written.append((message, failure))

        for number, emitted in sorted(enumerate(message.tuples, 1), key=lambda item: -item[1].size):
            headers = [
                *(emitted.headers or ()),
                *self._headers(message, failure, now_s),
                ("acktree-topic", emitted.topic.encode()),
                ("acktree-tuple", f"{number}/{len(message.tuples)}".encode()),
                ("kafka_dlt-original-topic", emitted.topic.encode()),
            ]
            if emitted.timestamp_ms > 0:
                headers.append(("kafka_dlt-original-timestamp", emitted.timestamp_ms.to_bytes(8, "big")))
            # Its own time is that of the write: with an old one the topic's retention would remove it.
            self._produce(self._topic(), emitted.value, emitted.key, headers, NO_TIMESTAMP, on_delivery)

    def _headers(self, message: Message, failure: Failure, now_s: float) -> Headers:
        last_ms = world.wall_ms()
        failing_s = now_s - (now_s if message.first_failed_s is None else message.first_failed_s)
        return [
            (ORIGIN, b""),
            (SPOUT, self._spout.encode()),
            ("acktree-message-id", text_of(message.id).encode("utf-8", "backslashreplace")),
            *why_headers(
                failure.attempts,
                failure.cause,
                failure.task,
                failure.reason,
                last_ms - int(failing_s * 1000),
                last_ms,
            ),
            *failed_tuple_headers(failure.failed_tuple, FailedValue(), failure.reason),
            *headers_of_tools(self._group, failure.cause, failure.reason),
        ]

    def pop_written(self) -> list[tuple[Message, Failure]]:
        """Return the messages that are in the log since the last call."""
        written, self._written = self._written, []
        return written


def text_of(message_id: Hashable) -> str:
    """Return a message id as text, at most MAX_ID_CHARACTERS.

    >>> text_of(7), text_of("order 7"), text_of(("orders", 7))
    ('7', 'order 7', "('orders', 7)")
    """
    try:
        text = message_id if isinstance(message_id, str) else repr(message_id)
    except Exception as error:
        text = f"{type(message_id).__name__}, whose repr raised {type(error).__name__}"
    return text[:MAX_ID_CHARACTERS]
