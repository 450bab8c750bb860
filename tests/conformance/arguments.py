"""What the operations of a script are about: topics, partitions, offsets and clients, drawn at random.

Invariant: what is drawn is mostly there, as far as that is known without running the script.
"""

import random
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED

TOPICS, GROUPS, CONSUMERS, PRODUCERS = (
    ("t0", "t1", "t2"),
    ("g0", "g1"),
    ("c0", "c1", "c2", "c3"),
    ("p0", "p1", "p2"),
)
TRANSACTIONAL_IDS = ("x0", "x1")
TOO_LONG, TOO_LARGE_FOR_TOPIC, TOO_LARGE = 4097, 1_500, 1_000_001
LOGICAL = (OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, OFFSET_INVALID)
CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {"cleanup.policy": "compact"},
    {"message.timestamp.type": "LogAppendTime"},
    {"max.message.bytes": "1000"},
    {"retention.ms": "3600000000"},
)
CHANGES = {
    "TOPIC": [("retention.ms", "7200000000"), ("retention.ms", "-1")],
    "GROUP": [
        *[("consumer.session.timeout.ms", value) for value in ("50000", "5999", "60001")],
        *[("consumer.heartbeat.interval.ms", value) for value in ("4000", "999", "15001")],
    ],
}
"""Settings to change; no session timeout that a script could outlive."""


class Arguments:
    """What a script is about, as far as it is known without running it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.partitions: dict[str, int] = {}
        self.producers: dict[str, bool] = {}
        """Producers, and whether they are transactional."""
        self.consumers: list[str] = []
        self.slots: list[str] = []
        self.written = 0
        self.reset = self.random.choice(["earliest", "earliest", "latest", "error"])

    def chance(self, of: float) -> bool:
        """Return True with a probability."""
        return self.random.random() < of

    def topic(self) -> str:
        """Return a topic, seldom one that does not exist."""
        if not self.partitions or self.chance(0.03):
            return self.random.choice(TOPICS)
        return self.random.choice(sorted(self.partitions))

    def place(self) -> tuple[str, int]:
        """Return a partition, seldom one that does not exist."""
        topic = self.topic()
        return topic, self.random.randrange(self.partitions.get(topic, 1)) + (3 if self.chance(0.02) else 0)

    def configured(self) -> tuple[str, str]:
        """Return what has settings: a topic, seldom a group."""
        return ("GROUP", self.random.choice(GROUPS)) if self.chance(0.3) else ("TOPIC", self.topic())

    def places(self) -> list[tuple[str, int]]:
        """Return some partitions."""
        return sorted({self.place() for _ in range(self.random.randint(1, 3))})

    def offset(self) -> int:
        """Return where to read from."""
        return self.random.choice(LOGICAL) if self.chance(0.5) else self.random.randrange(12)

    def commits(self) -> list[list[Any]]:
        """Return offsets to commit, with metadata or not."""
        found: list[list[Any]] = []
        for topic, partition in self.places():
            metadata = self.random.choice(["", "m", "x" * (TOO_LONG if self.chance(0.2) else 10)])
            found.append([topic, partition, self.random.randrange(12), metadata])
        return found

    def consumer_name(self) -> str:
        """Return a consumer."""
        return self.random.choice(self.consumers or list(CONSUMERS))

    def producer_name(self, *, is_transactional: bool | None = None) -> str:
        """Return a producer, rather one of a kind."""
        fitting = [name for name, kind in self.producers.items() if kind is is_transactional]
        return self.random.choice(fitting or list(self.producers) or list(PRODUCERS))
