"""Bolts with tree acks beside a plain confluent-kafka loop, or the latency of whole trees.

    python benchmarks/worker_rates.py [-b HOST:PORT] [--records 1000000] [--rounds 3]
                                        [--kinds plain,basic,batch]
    python benchmarks/worker_rates.py --latency [--rate 5000] [--seconds 20] [--rounds 3]

Each kind reads all records of one topic and writes them to its own topic, in its own process, one after the
other in every round. CPU is that process's user + system time, its Kafka client's threads included,
from the tenth part of the records to the end of its clean stop, everything flushed and committed. The plain
loops commit once a second, as bolts do; they carry no header, anchor nothing and ack nothing. Broker and
worker share the machine, so records a second say less than CPU seconds per million records.
"""

import json
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, TopicPartition

import jobs
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.kafka.settings import consumer_settings, producer_settings
from acktree.producers.bolt import AnyBolt
from acktree.producers.worker.gc_tuning import collect_rarely
from acktree.producers.worker.loop import Worker
from clock import this_process
from harness import (
    Cluster,
    Deployment,
    Table,
    arguments,
    cluster,
    flush,
    new_name,
    produce,
    run_script,
    some_of,
    spread,
)
from worker_latency import print_latencies

VALUE = b"x" * 100
COMMIT_INTERVAL_S = 1.0
WARM_UP = 0.1

PLAIN = ("plain-defaults", "plain")
BOLTS: dict[str, Callable[[jobs.Count], AnyBolt]] = {
    "basic": jobs.PassBasic,
    "batch": jobs.PassBatch,
    "columns": jobs.PassColumns,
    "exactly-once": jobs.PassBasic,
    "async": jobs.PassAsync,
}
KINDS = (*PLAIN, *BOLTS)
Rate = tuple[float, float]
"""CPU seconds per million records, records a second."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="records of 100 bytes a run")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each kind, in turn")
    parser.add_argument("--kinds", type=some_of(KINDS), default=KINDS)
    parser.add_argument("--latency", action="store_true", help="measure the latency of whole trees instead")
    parser.add_argument("--rate", type=int, default=5_000, help="records a second, with --latency")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a run is, with --latency")
    parser.add_argument("--child", metavar="TOPOLOGY", help="be the process that runs the one of --kinds")
    asked = parser.parse_args()
    if asked.child:
        collect_rarely()
        run = run_plain if asked.kinds[0] in PLAIN else run_bolt
        print(json.dumps(run(asked.bootstrap, asked.child, asked.kinds[0], asked.records)))
        return
    with cluster(asked) as kafka:
        if asked.latency:
            print_latencies(kafka, asked.rate, asked.seconds, asked.rounds)
        else:
            print_rates(kafka, asked.records, asked.rounds, asked.kinds)


def print_rates(kafka: Cluster, records: int, rounds: int, kinds: Sequence[str]) -> None:
    """Run every kind once a round, on new topics each round."""
    rates: dict[str, list[Rate]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        with kafka.deployment(topology(new_name(), kinds)) as deployment:
            fill(kafka, deployment, records)
            for kind, runs in rates.items():
                run = ["-b", kafka.bootstrap, "--kinds", kind, "--records", records]
                runs.append(run_script(__file__, "--child", deployment.name, *run))
    table = Table(f"{records:,} records, {rounds} round(s)", "CPU s a million", "min", "max", "records/s")
    for kind, runs in rates.items():
        cpu_s, per_s = zip(*runs, strict=True)
        table.row(kind, *spread(cpu_s), spread(per_s)[0])


def topology(name: str, kinds: Sequence[str]) -> str:
    """Return a topology with a bolt of each kind, and a reader of what they emit."""
    plain = [kind for kind in kinds if kind in PLAIN]
    emits = [f"{name}.in", *(f"{name}.{kind}" for kind in plain)]
    parts = [f'name = "{name}"\nackers = 2\n[spouts.source]\nemits = {emits}\n']
    for kind in kinds:
        if kind in BOLTS:
            exactly_once = str(kind == "exactly-once").lower()
            parts.append(f'[bolts.{kind}]\nreads = ["{name}.in"]\nemits = ["{name}.{kind}"]\n')
            parts.append(f"exactly_once = {exactly_once}\n")
    return "".join([*parts, f"[bolts.reader]\nreads = {[f'{name}.{kind}' for kind in kinds]}\n"])


def fill(kafka: Cluster, deployment: Deployment, records: int) -> None:
    """Write the tuples."""
    producer = kafka.producer()
    for headers in deployment.headers()(0, records):
        produce(producer, f"{deployment.name}.in", VALUE, headers=headers)
    flush(producer)


class Meter:
    """Counts records and measures from the end of the warm-up on, or all of them if they came together."""

    def __init__(self, records: int) -> None:
        self._left, self._from = records, records - round(records * WARM_UP)
        self._is_warm = False
        self._measured, self._begin = records, this_process()

    def count(self, records: int) -> bool:
        """Count records; return whether these were the last."""
        self._left -= records
        if not self._is_warm and 0 < self._left <= self._from:
            self._is_warm = True
            self._measured, self._begin = self._left, this_process()
        return self._left <= 0

    def rate(self) -> Rate:
        spent = this_process().since(self._begin)
        return spent.cpu_s / self._measured * 1e6, self._measured / spent.wall_s


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
    settings = consumer_settings(bootstrap, f"{name}.{kind}", {})
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
            while True:  # as `harness.produce`, whose call would be measured too
                try:
                    producer.produce(topic, jobs.work(message.value()))
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


if __name__ == "__main__":
    main()
