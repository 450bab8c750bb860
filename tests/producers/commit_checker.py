"""Checks while a topology runs that nothing is committed too early: lines, their words, and copies of these.

Invariant: a look reads what is committed, then where the log of copies ends, then that log up to there. The
copies of a line and their acks are in transactions, and acks count once these are decided, so the copies of a
line that is done lie below this end; a reader that is there has read all of them that are committed.
"""

import operator
import threading
import time

import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree.core.kafka.clients import ask_bounds, make_consumer
from acktree.core.kafka.errors import is_transient
from acktree.core.kafka.settings import consumer_settings
from deadlines import stretched

LINES, PARTITIONS, ROOM = 200_000, 4, 8
EACH = LINES // PARTITIONS
"""Line n is at offset n % EACH of partition n // EACH; its words are the numbers from n * ROOM on."""
EXPECTED = np.arange(ROOM) < 3 + np.arange(LINES)[:, None] % 3
"""Which words each line has: three to five."""
DEADLINE_S = stretched(240)


class OffsetReader:
    """What the spout's group has committed of the lines, and where logs end; no member of the group."""

    def __init__(self, bootstrap: str, name: str) -> None:
        settings = consumer_settings(bootstrap, f"{name}.split", {}, isolation_level="read_uncommitted")
        self._name, self._consumer = name, make_consumer(settings)

    def committed(self) -> list[int]:
        places = [TopicPartition(f"{self._name}.lines", partition) for partition in range(PARTITIONS)]
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                return [max(0, each.offset) for each in self._consumer.committed(places, 10)]
            except KafkaException as error:
                if not is_transient(error.args[0]) or time.monotonic() > deadline_s:
                    raise

    def ends(self, topic: str) -> list[int]:
        """Return the high watermarks: what any transaction has written by now lies below them."""
        places = [TopicPartition(f"{self._name}.{topic}", partition) for partition in range(PARTITIONS)]
        return [ask_bounds(self._consumer, place, wait_if_away=True)[1] for place in places]

    def close(self) -> None:
        self._consumer.close()


class WordLog:
    """The committed records of a topic of words: how often each word is there, and when it was written."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = consumer_settings(bootstrap, f"{topic}.look", {}, enable_partition_eof=True)
        self._consumer = make_consumer(settings)
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._next = [0] * PARTITIONS
        self.counts = np.zeros((LINES, ROOM), np.int32)
        self.written: list[tuple[int, int]] = []
        """Of each record the word and its time."""

    def read(self, ends: list[int]) -> None:
        """Read to these ends: it is decided then whether what lies below is committed."""
        deadline_s = time.monotonic() + DEADLINE_S
        while any(map(operator.lt, self._next, ends)):
            assert time.monotonic() < deadline_s, (self._next, ends)
            words: list[tuple[int, int]] = []
            for message in self._consumer.consume(10_000, 0.1):
                if (error := message.error()) is None:
                    words.append((int(message.value() or b""), message.timestamp()[1]))
                    self._next[message.partition() or 0] = (message.offset() or 0) + 1
                elif error.code() == KafkaError._PARTITION_EOF:  # behind markers and aborted records, too
                    self._next[message.partition() or 0] = message.offset() or 0
            np.add.at(self.counts.reshape(-1), [word for word, _ in words], 1)
            self.written += words

    def close(self) -> None:
        self._consumer.close()


class CommitChecker:
    """Looks all the time whether a line is committed of which a copy is missing; the first one ends it."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.copies = WordLog(bootstrap, f"{name}.copies")
        self.needed = EXPECTED.astype(np.int32)
        """How many copies of each word there are once its line is committed; replaced, never changed."""
        self.looks, self.error = 0, ""
        self._offsets, self._ended = OffsetReader(bootstrap, name), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.2):
                self.look()
        except BaseException as error:
            self.error = f"{type(error).__name__}: {error}"

    def look(self) -> None:
        """Check what is committed now. The order of the first three lines is the proof."""
        needed = self.needed
        committed = self._offsets.committed()
        self.copies.read(self._offsets.ends("copies"))
        for partition, end in enumerate(committed):
            lines = slice(partition * EACH, partition * EACH + end)
            early = np.argwhere(self.copies.counts[lines] < needed[lines])
            assert not early.size, f"{partition}: {end} is committed, without copies of {early[:5].tolist()}"
        self.looks += sum(0 < end < EACH for end in committed)

    def need_again(self, lines: slice) -> None:
        """Demand one copy more of what was rewound, and done before that."""
        needed = self.needed.copy()
        needed[lines] += EXPECTED[lines]
        self.needed = needed

    def end(self) -> None:
        """Look once more, and then no more."""
        self._ended.set()
        self._thread.join(DEADLINE_S)
        assert not self.error, self.error
        self.look()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        self.copies.close()
        self._offsets.close()
