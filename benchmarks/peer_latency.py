"""How long after a line was appended its words were, and when a reader of committed records had the last.

Both topics have the broker's append times. A line is done with its last word; a word that is appended in a
transaction is of use once that is committed, so the second figure is the one that counts.
"""

import time
from pathlib import Path

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from numpy.typing import NDArray

from harness import Cluster, Table
from peer_contenders import PARTITIONS, Contender, running

WARM_UP_S = 5.0
LATE_S = 60.0
WORDS = 4
POLL_S = 0.001
COLUMNS = "read p50, ms", "read p99, ms", "append p50, ms", "append p99, ms"


def print_latencies(
    kafka: Cluster, pythons: dict[str, Path], rate_per_s: int, seconds: float, rounds: int
) -> None:
    """Measure each contender once a round."""
    table = Table(f"line to words, {rate_per_s:,} lines/s", *COLUMNS)
    for _ in range(rounds):
        for kind, python in pythons.items():
            with running(kafka, kind, python) as contender:
                table.row(kind, *measure_latency(kafka, contender, rate_per_s, seconds))


def measure_latency(
    kafka: Cluster, contender: Contender, rate_per_s: int, seconds: float, warm_up_s: float = WARM_UP_S
) -> list[float]:
    """Append lines at a rate, and read what comes of them; the first ``warm_up_s`` do not count."""
    run = _LatencyRun(kafka, contender, round(rate_per_s * (warm_up_s + seconds)))
    try:
        run.append_and_read(rate_per_s, contender)
    finally:
        run.reader.close()
    counted = slice(round(rate_per_s * warm_up_s), None)
    return [
        figure
        for times_ms in (run.read_ms, run.words_ms)
        for figure in np.percentile((times_ms - run.lines_ms)[counted], (50, 99)).tolist()
    ]


class _LatencyRun:
    """By line: when it was appended, when its last word was, and when that was read; NaN if not yet."""

    def __init__(self, kafka: Cluster, contender: Contender, lines: int) -> None:
        self._topic = contender.lines
        self._producer = kafka.producer(linger_ms=0)
        self.reader: Consumer = kafka.consumer()
        topics = (contender.lines, contender.words)
        self.reader.assign(
            [TopicPartition(topic, at, OFFSET_BEGINNING) for topic in topics for at in range(PARTITIONS)]
        )
        self._words = np.zeros(lines, np.int64)
        self.lines_ms, self.words_ms, self.read_ms = (_unknown(lines) for _ in range(3))

    def append_and_read(self, rate_per_s: int, contender: Contender) -> None:
        """Append the lines, each when it is due, and read until all of their words are there."""
        total, appended, done = len(self._words), 0, 0
        begin_s = time.monotonic()
        end_s = begin_s + total / rate_per_s + LATE_S
        while done < total:
            now_s = time.monotonic()
            assert now_s < end_s, f"{total - done} of {total} lines have not all of their words"
            due = min(total, int((now_s - begin_s) * rate_per_s) + 1)
            for number in range(appended, due):
                self._producer.produce(self._topic, _line(number), partition=number % PARTITIONS)
            appended = due
            self._producer.poll(0)
            contender.check()
            done += self._read()

    def _read(self) -> int:
        """Read what is there; return how many lines are done with it."""
        records, done = self.reader.consume(1_000, POLL_S), 0
        now_ms = time.time() * 1000
        for record in records:
            assert record.error() is None, record.error()
            number = int((record.value() or b"").split(b"-", 1)[0])
            if record.topic() == self._topic:
                self.lines_ms[number] = record.timestamp()[1]
                continue
            self._words[number] += 1
            self.words_ms[number] = np.fmax(self.words_ms[number], record.timestamp()[1])
            if self._words[number] == WORDS:
                self.read_ms[number] = now_ms
                done += 1
        return done


def _line(number: int) -> bytes:
    return " ".join(f"{number}-{place}" for place in range(WORDS)).encode()


def _unknown(count: int) -> NDArray[np.float64]:
    return np.full(count, np.nan)
