"""Counts the dead letters of a topology.

Invariant: the ends of transactions also take offsets, so few offsets are counted by reading them; for more
the number of offsets is an upper bound. What is damaged also counts by its offsets.
"""

from confluent_kafka import Message

from acktree.console.view.cluster import Cluster, OffsetRange, Offsets, Place
from acktree.core.kafka.log_reader import Found
from acktree.wire.dead_letter import CLOSES, ORIGIN, SPOUT
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import read_headers

MAX_READ = 1_000
"""From more offsets on nobody reads all of them to count."""


class DeadLetterCount:
    """Counts the dead letters of one cluster, and reads again only after one was added or removed."""

    def __init__(self) -> None:
        self._known: dict[Place, tuple[OffsetRange, int]] = {}

    def count(self, cluster: Cluster, starts: Offsets, ends: Offsets) -> int:
        """Return how many there are; raises what ``Cluster.scan`` raises."""
        topic = cluster.topology.dead_letter_topic
        spans = {
            place: OffsetRange(starts.get(place, 0), end) for place, end in ends.items() if place[0] == topic
        }
        if sum(span.end - span.start for span in spans.values()) > MAX_READ:
            return sum(span.end - span.start for span in spans.values())
        changed = {place: span for place, span in spans.items() if self._known.get(place, ((), 0))[0] != span}
        counts, hidden = dict.fromkeys(changed, 0), set[Place]()
        for log_range in cluster.scan(changed):
            counts[log_range.place] += sum(not _closes(record) for record in log_range.records)
            if log_range.found is Found.DAMAGED:
                counts[log_range.place] += log_range.end - log_range.start
            elif log_range.found is Found.HIDDEN:
                hidden.add(log_range.place)
        self._known |= {place: (span, counts[place]) for place, span in changed.items()}
        total = sum(self._known[place][1] for place in spans)
        for place in hidden:  # they are counted again when the transaction has ended
            del self._known[place]
        return total


def _closes(record: Message) -> bool:
    """Return whether a record closes a dead letter; one whose headers cannot be read is a dead letter."""
    try:
        names = {name for name, _ in read_headers(record)}
    except MalformedRecord:
        return False
    return CLOSES in names and not names & {ORIGIN, SPOUT}
