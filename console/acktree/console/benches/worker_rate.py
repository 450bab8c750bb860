"""Bolts with tree acks beside a plain confluent-kafka loop: the same records, function and broker.

Each kind reads all records of one topic and writes them to a topic of its own, in a process of its own, one
after the other in every round. CPU is that process's user + system time, its Kafka client's threads included,
from the tenth part of the records to the end of its clean stop, everything flushed and committed. The plain
loops commit once a second, as bolts do; they carry no header, anchor nothing and ack nothing.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from acktree.console.benches.worker_bolts import PassAsync, PassBasic, PassBatch, PassColumns, work
from acktree.console.devbroker.owner import die_with_owner
from acktree.producers.bolt import AnyBolt
from acktree.producers.worker.gc_tuning import collect_rarely
from acktree.producers.worker.loop import Worker
from acktree.schemas.client_settings import consumer_settings, producer_settings
from acktree.schemas.clients import make_consumer, make_producer
from acktree.schemas.header import HEADER, SINGLE, single_headers
from acktree.schemas.ids import EdgeSource, generation_of, root_ids
from acktree.schemas.publish import apply_topology
from acktree.schemas.registry import read_history
from acktree.schemas.topology import Topology

VALUE = b"x" * 100
COMMIT_INTERVAL_S = 1.0
WARM_UP = 0.1

PLAIN = ("plain-defaults", "plain")
BOLTS: dict[str, Callable[[Callable[[int], None]], AnyBolt]] = {
    "basic": PassBasic,
    "batch": PassBatch,
    "columns": PassColumns,
    "exactly-once": PassBasic,
    "async": PassAsync,
}
KINDS = (*PLAIN, *BOLTS)


class Rate(NamedTuple):
    """What one run cost."""

    cpu_s_per_million: float
    records_per_s: float


class Meter:
    """Counts records and measures from the end of the warm-up on, or all of them if they came at once."""

    def __init__(self, records: int) -> None:
        self._left, self._from = records, records - round(records * WARM_UP)
        self._is_warm = False
        self._measured, self._begin = records, _clocks()

    def count(self, records: int) -> bool:
        """Count records; return whether these were the last."""
        self._left -= records
        if not self._is_warm and 0 < self._left <= self._from:
            self._is_warm = True
            self._measured, self._begin = self._left, _clocks()
        return self._left <= 0

    def rate(self) -> Rate:
        cpu_s, wall_s = (now - then for now, then in zip(_clocks(), self._begin, strict=True))
        return Rate(cpu_s / self._measured * 1e6, self._measured / wall_s)


def _clocks() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, time.perf_counter()


def compare(bootstrap: str, records: int, rounds: int, kinds: Sequence[str]) -> dict[str, list[Rate]]:
    """Run every kind once a round, on new topics each round."""
    rates: dict[str, list[Rate]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        name = f"bench-{uuid.uuid4().hex[:8]}"
        fill(bootstrap, name, records, kinds)
        for kind, kept in rates.items():
            command = [sys.executable, "-m", __name__, bootstrap, name, kind, str(records)]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=die_with_owner())
            kept.append(Rate(*json.loads(run.stdout)))
    return rates


def median(rates: Sequence[Rate]) -> Rate:
    """Return the medians of both figures."""
    return Rate(*(statistics.median(figure) for figure in zip(*rates, strict=True)))


def fill(bootstrap: str, name: str, records: int, kinds: Sequence[str]) -> None:
    """Publish a topology with a bolt of each kind and a reader of what they emit; write the tuples."""
    source = f"{name}.in"
    outputs = {kind: f"{name}.{kind}" for kind in kinds}
    bolts: dict[str, Any] = {
        kind: {"reads": [source], "emits": [outputs[kind]], "exactly_once": kind == "exactly-once"}
        for kind in kinds
        if kind in BOLTS
    }
    bolts["reader"] = {"reads": list(outputs.values())}
    emits = [source, *(outputs[kind] for kind in kinds if kind in PLAIN)]
    spouts = {"source": {"emits": emits}}
    topology = Topology.model_validate({"name": name, "ackers": 2, "spouts": spouts, "bolts": bolts})
    apply_topology(bootstrap, topology, {})
    version = read_history(bootstrap, name, {}).latest.version
    roots = root_ids(0, generation_of(1, 0), np.arange(records))
    packed = single_headers(version, version, roots, EdgeSource().many(records)).tobytes()
    producer = make_producer(producer_settings(bootstrap, {}))
    for at in range(0, len(packed), SINGLE.itemsize):
        headers: list[tuple[str, str | bytes | None]] = [(HEADER, packed[at : at + SINGLE.itemsize])]
        _produce(producer, source, headers)
    producer.flush()


def _produce(producer: Any, topic: str, headers: Any) -> None:
    while True:
        try:
            producer.produce(topic, VALUE, headers=headers)
            return
        except BufferError:
            producer.poll(0.1)


def run_bolt(bootstrap: str, name: str, kind: str, records: int) -> Rate:
    """Run a worker until it has executed all records, and stop it."""
    meter = Meter(records)

    def count(executed: int) -> None:
        if meter.count(executed):
            worker.stop()

    worker = Worker(bootstrap, name, BOLTS[kind](count), name=kind)
    worker.run()
    return meter.rate()


def run_plain(bootstrap: str, name: str, kind: str, records: int) -> Rate:
    """Consume, call, produce; flush and commit once a second and at the end."""
    group = f"{name}.{kind}"
    settings = consumer_settings(bootstrap, group, {})
    if kind == "plain-defaults":
        for ours in ("fetch.queue.backoff.ms", "queued.min.messages"):
            del settings[ours]
    consumer, producer = make_consumer(settings), make_producer(producer_settings(bootstrap, {}))
    consumer.subscribe([f"{name}.in"])
    meter, topic, commit_s, done = Meter(records), f"{name}.{kind}", 0.0, False
    while not done:
        batch = consumer.consume(10_000, 0) or consumer.consume(1, 0.1)
        for message in batch:
            assert message.error() is None, message.error()
            while True:
                try:
                    producer.produce(topic, work(message.value()))
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
        done = meter.count(len(batch))
        if batch and (done or time.monotonic() > commit_s):
            producer.flush()
            consumer.commit(offsets=_positions(consumer), asynchronous=False)
            commit_s = time.monotonic() + COMMIT_INTERVAL_S
    consumer.close()
    return meter.rate()


def _positions(consumer: Consumer) -> list[TopicPartition]:
    return [place for place in consumer.position(consumer.assignment()) if place.offset >= 0]


def table(rates: dict[str, list[Rate]]) -> Iterator[str]:
    """Yield the lines of the result: medians, and the span of the CPU figure."""
    yield f"{'KIND':16}{'CPU S PER MILLION':>20}{'MIN':>8}{'MAX':>8}{'RECORDS/S':>14}"
    for kind, runs in rates.items():
        cpu = [rate.cpu_s_per_million for rate in runs]
        middle = median(runs)
        yield (
            f"{kind:16}{middle.cpu_s_per_million:20.2f}{min(cpu):8.2f}{max(cpu):8.2f}"
            f"{middle.records_per_s:14,.0f}"
        )


def main() -> None:
    bootstrap, name, kind, records = sys.argv[1:]
    collect_rarely()
    run = run_plain if kind in PLAIN else run_bolt
    print(json.dumps(run(bootstrap, name, kind, int(records))))


if __name__ == "__main__":
    main()
