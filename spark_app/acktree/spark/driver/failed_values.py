"""What the tuple held that failed for good, read from its topic by its coordinates.

Invariant: a value belongs to the tree that failed, or it is not shown; where it cannot be read, a note says
why, and the dead letter is written without it. Nothing waits long for a value.
"""

from confluent_kafka import Consumer, TopicPartition

from acktree.schemas import world
from acktree.schemas.control_records import FailedTuple
from acktree.schemas.dead_letter import FailedValue
from acktree.schemas.errors import AcktreeError, MalformedRecord
from acktree.schemas.header import decode_header, find_header, read_headers
from acktree.spark.driver.one_record import read_record

READ_TIMEOUT_S = 3.0
"""So long one value may take."""
AGAIN_AFTER_S = 60.0
"""After a failure, no value of its topic is asked for, for so long."""


class FailedValues:
    """Reads the values of failed tuples; the consumer's assignment is replaced."""

    def __init__(self, consumer: Consumer, bootstrap: str) -> None:
        self._consumer, self._bootstrap = consumer, bootstrap
        self._failures: dict[str, tuple[float, str]] = {}

    def read(self, failed: FailedTuple | None, root: int) -> FailedValue:
        """Return what a failed tuple of the tree of a root held."""
        if failed is None:
            return FailedValue()
        until_s, note = self._failures.get(failed.topic, (0.0, ""))
        if world.monotonic_s() < until_s:
            return FailedValue(None, note)
        place = TopicPartition(failed.topic, failed.partition, failed.offset)
        try:
            record = read_record(self._consumer, place, self._bootstrap, READ_TIMEOUT_S)
        except AcktreeError as error:
            note = f"not read: {error}"
            self._failures[failed.topic] = world.monotonic_s() + AGAIN_AFTER_S, note
            return FailedValue(None, note)
        if record is None:
            return FailedValue(None, "the tuple is no longer in its topic")
        try:
            header = find_header(read_headers(record))
            roots = {anchor.root for anchor in decode_header(header).anchors} if header else set()
        except MalformedRecord:
            roots = set()
        if root not in roots:
            return FailedValue(None, "its topic holds another record there: it was created anew")
        return FailedValue.of(record.value())
