"""How long `acktree trace` takes over a control log of ten million acks.

    python benchmarks/trace.py [-b HOST:PORT] [--acks 10000000] [--per-record 100]

Writes inits, acks and verdicts of many roots (four acks each) and the tuples of the traced ones to a topology
of its own, then traces a record that is done, one that failed and was replayed, and one that is open.
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.devbroker.broker import LocalBroker
from acktree.schemas.client_settings import producer_settings
from acktree.schemas.clients import make_producer
from acktree.schemas.codec import encode_ack, encode_ack_init, encode_result
from acktree.schemas.control_records import ENTRY, Ack, AckInit, Cause, Fail, Failure, Result
from acktree.schemas.header import HEADER, Anchor, encode_header
from acktree.schemas.ids import EdgeSource, consumer_edge, fnv1a64, root_id, root_ids
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology

ACKS_PER_ROOT = 4
ACKERS = 4
FIRST, REPLAY = 16, 17
TOPOLOGY = """
name = "{name}"
ackers = {ackers}
[spouts.lines]
topics = ["{name}.lines"]
emits = ["{name}.words"]
[bolts.count]
reads = ["{name}.words"]
"""


class Log:
    """Writes control records; values of the many roots are random, they only take room."""

    def __init__(self, bootstrap: str, name: str, per_record: int) -> None:
        self.producer = make_producer(producer_settings(bootstrap, {}))
        self.name, self.per_record, self.edges = name, per_record, EdgeSource()

    def send(self, topic: str, value: bytes, partition: int, headers: list | None = None) -> None:
        while True:
            try:
                self.producer.produce(f"{self.name}.{topic}", value, partition=partition, headers=headers)
                return
            except BufferError:
                self.producer.poll(0.1)

    def fill(self, roots: np.ndarray) -> None:
        """Write an init, four acks and a verdict of each root."""
        for partition in range(ACKERS):
            mine = roots[roots % np.uint64(ACKERS) == partition]
            for start in range(0, len(mine), self.per_record):
                part = mine[start : start + self.per_record]
                self.send("ack-init", encode_ack_init(AckInit(0, 1, self._entries(part))), partition)
                for task in range(ACKS_PER_ROOT):
                    self.send("ack", encode_ack(Ack(f"count@host:{task}", 1, self._entries(part))), partition)
                self.send("spout-0", encode_result(Result(partition, part)), 0)

    def _entries(self, roots: np.ndarray) -> np.ndarray:
        entries = np.empty(len(roots), ENTRY)
        entries["root"], entries["value"] = roots, self.edges.many(len(roots))
        return entries

    def tree(self, offset: int, generation: int, *, fails: bool = False, open_edge: bool = False) -> None:
        """Write one tree of three tuples, as a stage and a bolt would."""
        root = root_id(0, generation, offset)
        partition, edges = root % ACKERS, [self.edges.one() for _ in range(3)]
        owned = [consumer_edge(edge, fnv1a64("count")) for edge in edges]
        for edge in edges:
            self.send("words", b"word", 0, [(HEADER, encode_header(1, [Anchor(1, root, edge)]))])
        init = np.array([(root, owned[0] ^ owned[1] ^ owned[2])], ENTRY)
        self.send("ack-init", encode_ack_init(AckInit(0, 1, init)), partition)
        for value in owned[:2] if open_edge or fails else owned:
            self.send("ack", encode_ack(Ack("count@host:1", 1, np.array([(root, value)], ENTRY))), partition)
        if fails:
            self.send(
                "ack", encode_ack(Ack("count@host:1", 1, fails=[Fail(root, "no such word")])), partition
            )
            failure = Failure(root, Cause.FAILED, "count@host:1", "no such word")
            self.send("spout-0", encode_result(Result(partition, failed=[failure])), 0)
        elif not open_edge:
            self.send("spout-0", encode_result(Result(partition, np.array([root], np.uint64))), 0)


def write(bootstrap: str, name: str, acks: int, per_record: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(f"{name}.lines", 1)])[f"{name}.lines"].result()
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name, ackers=ACKERS)), {})
    log, many = Log(bootstrap, name, per_record), acks // ACKS_PER_ROOT
    for _ in range(10):
        log.send("lines", b"a line", 0)
    step = 250_000
    for start in range(10, many, step):
        if start - 10 == many // step // 2 * step:
            log.tree(1, FIRST)
            log.tree(2, FIRST, fails=True)
            log.tree(2, REPLAY)
            log.tree(3, FIRST, open_edge=True)
        log.fill(root_ids(0, FIRST, np.arange(start, min(start + step, many), dtype=np.int64)))
    assert log.producer.flush(120) == 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-b", "--bootstrap-server", dest="bootstrap")
    options.add_argument("--acks", type=int, default=10_000_000)
    options.add_argument("--per-record", type=int, default=100)
    given = options.parse_args()
    name = f"bench-trace-{time.time_ns() // 1_000_000}"
    with ExitStack() as stack:
        bootstrap = given.bootstrap or stack.enter_context(LocalBroker()).bootstrap
        write(bootstrap, name, given.acks, given.per_record)
        print(f"{given.acks:,} acks, {given.per_record} a record, {ACKERS} partitions, in {name}.ack")
        for offset in (1, 2, 3):
            began_s = time.monotonic()
            command = [
                Path(sys.executable).with_name("acktree"),
                "trace",
                "--format",
                "json",
                "-b",
                bootstrap,
            ]
            place = ["--topology", name, f"{name}.lines", "0", str(offset)]
            done = subprocess.run([*command, *place], capture_output=True, text=True, check=False)
            found, took_s = json.loads(done.stdout), time.monotonic() - began_s
            states = ", ".join(emission["state"] for emission in found["emissions"])
            size = f"{found['searched_records']:,} records, {found['searched_bytes'] / 1e6:,.0f} MB"
            print(f"offset {offset} ({states}): {took_s:.1f} s in all, {size} in {found['took_s']:.1f} s")


if __name__ == "__main__":
    main()
