"""Bolts with tree acks beside a plain confluent-kafka loop: CPU seconds per million records.

All read the same 100-byte records from one topic, pass them through a Python function and write them to
another, each in a process of its own, on the same broker, one after the other in every round.

    python benchmarks/worker.py -b localhost:9092 --records 1000000 --rounds 3

CPU is the process's user + system time from its first record to its last, librdkafka's threads included. The
plain loop runs with the same client settings and commits once a second; it anchors and acks nothing.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import uuid

import numpy as np
from confluent_kafka import Producer

from acktree.producers import BasicBolt, BatchBolt
from acktree.producers.garbage import collect_rarely
from acktree.producers.worker import Worker
from acktree.schemas.clients import consumer_settings, make_consumer, make_producer, producer_settings
from acktree.schemas.header import HEADER, single_headers
from acktree.schemas.ids import EdgeSource, root_ids
from acktree.schemas.publish import apply_topology
from acktree.schemas.registry import read_history
from acktree.schemas.topology import BoltTable, SpoutTable, Topology

VALUE = b"x" * 100
HEADER_BYTES = 21


def work(value: bytes) -> bytes:
    """The user's function."""
    return value


class Meter:
    """CPU and wall time between the first and the last record."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = cpu_s(), time.monotonic()

    def result(self, records: int) -> dict[str, float]:
        wall_s = time.monotonic() - self._wall_s
        return {"cpu_s_per_million": (cpu_s() - self._cpu_s) / records * 1e6, "records_s": records / wall_s}


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_bolt(bootstrap: str, name: str, records: int, batch: bool) -> dict[str, float]:
    """Run a BasicBolt or BatchBolt until it has executed all records and its outputs are durable."""
    meters: list[Meter] = []

    class Pass(BasicBolt):
        left = records

        def execute(self, tuple, emit):  # type: ignore[no-untyped-def]
            if self.left == records:
                meters.append(Meter())
            emit(work(tuple.value))
            self.left -= 1
            if not self.left:
                worker.stop()

        def cleanup(self) -> None:
            worker._settle()

    class PassBatch(BatchBolt):
        left = records

        def execute(self, tuples, collector):  # type: ignore[no-untyped-def]
            if self.left == records:
                meters.append(Meter())
            collector.emit_many([work(tuple.value) for tuple in tuples], tuples)
            self.left -= len(tuples)
            if not self.left:
                worker.stop()

        def cleanup(self) -> None:
            worker._settle()

    worker = Worker(bootstrap, name, PassBatch() if batch else Pass(), name="first")
    worker.run()
    return meters[0].result(records)


def run_plain(bootstrap: str, name: str, records: int) -> dict[str, float]:
    """Consume, call, produce, flush and commit once a second."""
    consumer = make_consumer(consumer_settings(bootstrap, f"{name}.plain-{uuid.uuid4().hex[:6]}", {}))
    producer = make_producer(producer_settings(bootstrap, {}))
    consumer.subscribe([f"{name}.in"])
    left, meter, commit_s = records, None, time.monotonic() + 1
    while left:
        batch = consumer.consume(10_000, 0) or consumer.consume(1, 0.1)
        if batch and meter is None:
            meter = Meter()
        for message in batch:
            assert message.error() is None
            while True:
                try:
                    producer.produce(f"{name}.plain", work(message.value()))
                    break
                except BufferError:
                    producer.poll(0.1)
        left -= len(batch)
        producer.poll(0)
        if time.monotonic() > commit_s:
            producer.flush()
            consumer.commit(offsets=consumer.position(consumer.assignment()), asynchronous=False)
            commit_s = time.monotonic() + 1
    producer.flush()
    assert meter is not None
    result = meter.result(records)
    consumer.close()
    return result


def fill(bootstrap: str, name: str, records: int, exactly_once: bool) -> None:
    """Publish the topology and write the tuples."""
    topology = Topology(
        name=name,
        ackers=2,
        spouts={"s": SpoutTable(emits=(f"{name}.in", f"{name}.plain"))},
        bolts={
            "first": BoltTable(reads=(f"{name}.in",), emits=(f"{name}.out",), exactly_once=exactly_once),
            "second": BoltTable(reads=(f"{name}.out",)),
        },
    )
    apply_topology(bootstrap, topology, {})
    version = read_history(bootstrap, name, {}).latest.version
    roots = root_ids(0, 16, np.arange(records))
    packed = single_headers(version, version, roots, EdgeSource().many(records))
    producer = Producer(producer_settings(bootstrap, {}))
    for at in range(0, len(packed), HEADER_BYTES):
        while True:
            try:
                producer.produce(f"{name}.in", VALUE, headers=[(HEADER, packed[at : at + HEADER_BYTES])])
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", "--bootstrap-server", required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        kind, name = given.child
        server, records = given.bootstrap_server, given.records
        plain = kind == "plain"
        collect_rarely()
        told = run_plain(server, name, records) if plain else run_bolt(server, name, records, kind == "batch")
        print(json.dumps(told))
        return
    for round_number in range(given.rounds):
        for kind in ("plain", "batch", "at_least_once", "exactly_once"):
            name = f"bench-{uuid.uuid4().hex[:8]}"
            fill(given.bootstrap_server, name, given.records, kind == "exactly_once")
            command = [sys.executable, __file__, "-b", given.bootstrap_server, "--child", kind, name]
            command += ["--records", str(given.records)]
            told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            print(
                f"{round_number} {kind:14} {told['cpu_s_per_million']:6.2f} CPU s/M "
                f"{told['records_s']:10,.0f} records/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
