"""Reads the value of a tuple that failed for good from its topic, by its coordinates.

Invariant: a value belongs to the tree that failed, or it is not shown; if it cannot be read, a note says why,
and the dead letter is written without it. Nothing waits long for a value.
"""

from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Message

from acktree.core import world
from acktree.core.kafka.log_reader import LogReader
from acktree.producers.spouts.driver.one_record import by_partition, read_records
from acktree.wire.control_records import FailedTuple
from acktree.wire.dead_letter import FailedValue
from acktree.wire.errors import AcktreeError, MalformedRecord
from acktree.wire.header import decode_header, find_header, read_headers

READ_TIMEOUT_S = 3.0
"""So long one value may take."""
AGAIN_AFTER_S = 60.0
"""After a failure, no value of its topic is asked for, for so long."""


class _Content(NamedTuple):
    """The roots of a record, and the beginning of its value: a whole one may be large."""

    roots: set[int]
    value: FailedValue


class FailedValues:
    """Reads the values of failed tuples."""

    def __init__(self, reader: LogReader, bootstrap: str) -> None:
        self._log, self._bootstrap = reader, bootstrap
        self._failures: dict[str, tuple[float, str]] = {}

    def read(self, failures: Sequence[tuple[FailedTuple | None, int]]) -> list[FailedValue]:
        """Return what failed tuples of the trees of roots held, one for each."""
        places = [(each.topic, each.partition, each.offset) for each, _ in failures if each is not None]
        read = {place: self._contents(place, offsets) for place, offsets in by_partition(places).items()}
        return [
            FailedValue()
            if failed is None
            else _value(read[failed.topic, failed.partition], failed.offset, root)
            for failed, root in failures
        ]

    def _contents(self, place: tuple[str, int], offsets: list[int]) -> dict[int, _Content] | str:
        """Return what the records of a partition hold by offset, or why they are not read."""
        topic, _ = place
        until_s, note = self._failures.get(topic, (0.0, ""))
        if world.monotonic_s() < until_s:
            return note
        contents: dict[int, _Content] = {}
        try:
            while offsets:
                found, offsets = read_records(self._log, place, offsets, self._bootstrap, READ_TIMEOUT_S)
                contents |= {offset: _content(record) for offset, record in found.items()}
            return contents
        except AcktreeError as error:
            note = f"not read: {error}"
            self._failures[topic] = world.monotonic_s() + AGAIN_AFTER_S, note
            return note


def _content(record: Message) -> _Content:
    try:
        header = find_header(read_headers(record))
        roots = {anchor.root for anchor in decode_header(header).anchors} if header else set()
    except MalformedRecord:
        roots = set()
    return _Content(roots, FailedValue.of(record.value()))


def _value(contents: dict[int, _Content] | str, offset: int, root: int) -> FailedValue:
    if isinstance(contents, str):
        return FailedValue(None, contents)
    if (content := contents.get(offset)) is None:
        return FailedValue(None, "the tuple is no longer in its topic")
    if root not in content.roots:
        return FailedValue(None, "its topic was recreated and holds another record there")
    return content.value
