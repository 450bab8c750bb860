"""A word count over two hops beside its peers: acktree, Quix Streams, Bytewax, FastStream, and a plain loop.

    python benchmarks/peer_rates.py [-b HOST:PORT] [--lines 200000] [--rounds 3] [--kinds plain,acktree,quix]
    python benchmarks/peer_rates.py --latency [--rate 500] [--seconds 20] [--rounds 3] [--kinds plain,acktree]

Lines of text are split into words, which are written to a topic with themselves as keys, read from there, and
counted in memory. Every contender does so once a round, on new topics of the same broker, after a tenth as
many lines that do not count. All lines become visible together, as one transaction; a run ends when both hops
have committed their offsets. The topic of words is read afterwards: the counts must be right.

CPU is user and system time of all processes of a contender, without the broker's. Peers commit each hop for
itself, about once a second; the plain loop does so by a clock and guarantees nothing. acktree commits the
offset of a line when all of its words are counted. Peers are installed by pip into a folder that is deleted
with the end of the run.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from acktree.console.demo.text import library_lines
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.core.temporary_folder import temporary_folder
from clock import TreeClock
from harness import (
    FLUSH_S,
    Cluster,
    Table,
    arguments,
    cluster,
    produce,
    some_of,
    spread,
    wait_until,
)
from peer_contenders import CONTENDERS, PARTITIONS, PEERS, STAGES, Contender, NotInstalled, install, running
from peer_latency import print_latencies

WARM_UP = 0.1
RUN_LIMIT_S = 900.0
POLL_S = 0.05
AT_END = {"enable_partition_eof": True}


class PeerRun(NamedTuple):
    """CPU seconds per million lines, lines a second."""

    cpu_s: float
    per_s: float


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--lines", type=int, default=200_000, help="lines a run")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each contender, in turn")
    parser.add_argument("--kinds", type=some_of(CONTENDERS), default=None)
    parser.add_argument("--latency", action="store_true", help="measure from a line to its words instead")
    parser.add_argument("--rate", type=int, default=500, help="lines a second, with --latency")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a run is, with --latency")
    asked = parser.parse_args()
    kinds = asked.kinds or (("plain", *STAGES) if asked.latency else CONTENDERS)
    with cluster(asked) as kafka, pythons(kinds) as installed:
        if asked.latency:
            print_latencies(kafka, installed, asked.rate, asked.seconds, asked.rounds)
        else:
            print_rates(kafka, installed, asked)


@contextmanager
def pythons(kinds: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Yield the Python of each contender; say why one has none."""
    with temporary_folder("peers") as folder:
        found: dict[str, Path] = {}
        for kind in kinds:
            try:
                found[kind] = install(kind, folder) if kind in PEERS else Path(sys.executable)
            except NotInstalled as error:
                print(f"{kind} could not be installed, and is left out: {error}", flush=True)
        yield found


def print_rates(kafka: Cluster, installed: dict[str, Path], asked: argparse.Namespace) -> None:
    """Run every contender once a round; ratios are those of a round."""
    lines = [line.encode() for line in library_lines(asked.lines)]
    runs: dict[str, list[PeerRun]] = {kind: [] for kind in installed}
    each = Table("run", "CPU s a million lines", "lines/s")
    for number in range(asked.rounds):
        for kind, python in installed.items():
            runs[kind].append(measure(kafka, kind, python, lines))
            each.row(f"{kind}, round {number + 1}", *runs[kind][-1])
    title = f"{asked.lines:,} lines, {asked.rounds} round(s)"
    table = Table(title, "CPU s a million lines", "min", "max", "lines/s", "CPU / plain", "CPU / acktree")
    for kind, measured in runs.items():
        ratios = [_ratio(measured, runs.get(other, [])) for other in ("plain", "acktree")]
        cpu_s, per_s = zip(*measured, strict=True)
        table.row(kind, *spread(cpu_s), median(per_s), *ratios)


def _ratio(runs: Sequence[PeerRun], others: Sequence[PeerRun]) -> float | str:
    pairs = [(run, other) for run, other in zip(runs, others, strict=False) if other.cpu_s]
    return median(run.cpu_s / other.cpu_s for run, other in pairs) if pairs else "-"


def measure(kafka: Cluster, kind: str, python: Path, lines: Sequence[bytes]) -> PeerRun:
    """Run one contender; AssertionError if it counts wrongly, or not in RUN_LIMIT_S."""
    warm_up = lines[: max(PARTITIONS, round(len(lines) * WARM_UP))]
    with running(kafka, kind, python) as contender, closing(kafka.consumer(**AT_END)) as reader:
        clocks = [TreeClock(process.pid) for process in contender.processes]
        counts = count_words(warm_up)
        append(kafka, contender.lines, warm_up)
        wait_until(lambda: is_done(reader, contender, counts.total()), RUN_LIMIT_S, "warm-up", POLL_S)
        counts += count_words(lines)
        append(kafka, contender.lines, lines)
        begin_s, before = time.perf_counter(), [clock() for clock in clocks]
        wait_until(lambda: is_done(reader, contender, counts.total()), RUN_LIMIT_S, "all words", POLL_S)
        wall_s = time.perf_counter() - begin_s
        cpu_s = sum(clock().since(was).cpu_s for clock, was in zip(clocks, before, strict=True))
        assert read_counts(reader, contender.words) == counts, f"{kind} has split lines wrongly"
    return PeerRun(cpu_s / len(lines) * 1e6, len(lines) / wall_s)


def count_words(lines: Sequence[bytes]) -> Counter[bytes]:
    return Counter(word for line in lines for word in line.split())


def append(kafka: Cluster, topic: str, lines: Sequence[bytes]) -> None:
    """Append lines in one transaction."""
    producer = kafka.producer(transactional_id=f"{topic}.writer")
    producer.init_transactions()
    producer.begin_transaction()
    for number, line in enumerate(lines):
        produce(producer, topic, line, partition=number % PARTITIONS)
        producer.poll(0)
    producer.commit_transaction(FLUSH_S)


def is_done(reader: Consumer, contender: Contender, words: int) -> bool:
    """Return whether both hops have committed everything.

    The last record of a partition that is written in transactions is a marker, which need not be committed.
    """
    contender.check()
    line_ends, word_ends = log_ends(reader, contender.lines), log_ends(reader, contender.words)
    if sum(word_ends) < words or not _are_behind(
        contender.committed("split"), [end - 1 for end in line_ends]
    ):
        return False
    marker = 1 if contender.is_transactional else 0
    return _are_behind(contender.committed("count"), [end - marker for end in word_ends])


def _are_behind(committed: Sequence[int], ends: Sequence[int]) -> bool:
    return all(at >= end for at, end in zip(committed, ends, strict=True))


def log_ends(reader: Consumer, topic: str) -> list[int]:
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    return [reader.get_watermark_offsets(place, timeout=BROKER_TIMEOUT_S)[1] for place in places]


def read_counts(reader: Consumer, topic: str) -> Counter[bytes]:
    """Count what a reader of committed records finds in the topic of words."""
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    counts: Counter[bytes] = Counter()
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        for record in reader.consume(10_000, 1):
            if (error := record.error()) is None:
                counts[record.value() or b""] += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(record.partition() or 0)
    reader.unassign()
    return counts


if __name__ == "__main__":
    main()
