"""Checks the demo at its end: what Kafka and SQLite hold, against a direct count of the same text.

Invariant: nothing here trusts the pipeline's own figures if the cluster can be asked.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_consumer
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import consumer_settings


@dataclass(frozen=True, slots=True)
class AccountLine:
    """One line of the account: the expected and the actual count."""

    name: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> tuple[int, int]:
    """Return (sum of log ends, sum of committed offsets) of a topic, as the broker reports them."""
    consumer: Consumer = make_consumer(consumer_settings(bootstrap, group, {}))
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    try:
        with clear_errors(bootstrap):
            ends = [consumer.get_watermark_offsets(place, timeout=BROKER_TIMEOUT_S) for place in places]
            committed = consumer.committed(places, timeout=BROKER_TIMEOUT_S)
    finally:
        consumer.close()
    return sum(end[1] for end in ends if end), sum(max(place.offset, 0) for place in committed)


def counted_words(database: Path) -> tuple[Counter[str], int]:
    """Return the words that the worker stored, and how many lines it failed on purpose."""
    connection = sqlite3.connect(database)
    try:
        counts = Counter(dict(connection.execute("select word, count(*) from words group by word")))
        (failures,) = connection.execute("select count(*) from failures").fetchone()
    finally:
        connection.close()
    return counts, failures


def differing(expected: Mapping[str, int], found: Mapping[str, int]) -> int:
    """Return how many words are counted differently."""
    return sum(expected.get(word, 0) != found.get(word, 0) for word in expected.keys() | found.keys())
