"""Writes a large topology as if it had run for some time, for benchmarks/watching.py.

Every record is made by the product's own codecs. While it writes, the topics take the times it gives them.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import pairwise

import numpy as np
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.acker.figures import Figures
from acktree.core.edges import EdgeSource
from acktree.core.errors import BrokerUnreachable, MissingTopic
from acktree.core.kafka.clients import make_admin
from acktree.core.kafka.settings import consumer_settings
from acktree.core.reports.stats import OLDEST_ROOTS, STATS_INTERVAL_S, Report, Value
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import Published, read_history
from acktree.producers.collecting.counters import Counters
from acktree.producers.ledger.partitions.done_set import serialized
from acktree.wire.codec import encode_ack, encode_ack_init, encode_result
from acktree.wire.control_records import ENTRY, Ack, AckInit, EntryArray, Result
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import IdArray, root_ids
from acktree.wire.state_records import OffsetSeal, SlotKey, SlotState, encode_slot_state
from harness import Cluster, Headers, flush, produce

PARTITIONS, CHAINS, DEPTH = 64, 5, 4
TASKS, ACKERS, WORKERS_PER_BOLT = 8, 12, 4
PENDING = 20
"""So many records of each source partition are open."""
FIRST = 16
TUPLE_SPAN_MS = 120_000
"""Tuples are written only for the last TUPLE_SPAN_MS: no command reads older ones."""


def topology_text(name: str) -> str:
    """Return the file: one spout, five chains of four bolts."""
    chains = range(CHAINS)
    parts = [
        f'name = "{name}"\nackers = {PARTITIONS}\n[spouts.events]\ntopics = ["{name}.events"]\n'
        f"tasks = {TASKS}\nemits = {[f'{name}.c{chain}d0' for chain in chains]}\n"
    ]
    for chain in chains:
        for depth in range(DEPTH):
            reads, emits = f"{name}.c{chain}d{depth}", f"{name}.c{chain}d{depth + 1}"
            more = f"emits = ['{emits}']\n" if depth + 1 < DEPTH else ""
            parts.append(f"[bolts.c{chain}d{depth}]\nreads = ['{reads}']\n{more}")
    return "".join(parts)


class WatchedTopology:
    """One topology of the benchmark; ``count`` records in each source partition."""

    def __init__(self, kafka: Cluster, name: str, acks: int, per_record: int, hours: float) -> None:
        self.bootstrap, self.name, self.per_record = kafka.bootstrap, name, per_record
        self.source, self.count = f"{name}.events", max(acks // DEPTH // PARTITIONS, 4 * PENDING)
        self.span_ms, self.end_ms = int(hours * 3_600_000), int(time.time() * 1000)
        self.report_count = self.tuple_count = 0
        self._kafka, self._admin = kafka, make_admin(kafka.bootstrap, {})
        self._producer = kafka.producer(linger_ms=50, compression_type="lz4", batch_size=1_000_000)
        self._sent: Counter[tuple[str, int]] = Counter()
        self._edges = EdgeSource()

    def exists(self) -> bool:
        return self.source in self._admin.list_topics(timeout=30).topics

    def write(self) -> None:
        """Write everything; the reports last, so that they are fresh."""
        self._kafka.create_topic(self.source, PARTITIONS)
        self._apply()
        published = read_history(self.bootstrap, self.name, {}).latest
        slots = [slot for slot in published.slots if slot.topic == self.source]
        self._slots = [(slot.slot, slot.partition, published.task_of(slot)) for slot in slots]
        self._set_timestamps("CreateTime")
        step, open_from = self.per_record * PARTITIONS // (PARTITIONS // TASKS), self.count - PENDING
        cut_from = open_from - open_from // 100
        bounds = sorted({*range(0, open_from, step), cut_from, open_from, self.count})
        for first, behind in pairwise(bounds):
            if first == cut_from:
                self._cuts = self._sent.copy()
            self._write_roots(first, behind, is_open=first == open_from)
        flush(self._producer)
        self._set_timestamps("LogAppendTime")
        self._commit(published)
        self.write_reports(self.span_ms / 1000)

    def _apply(self) -> None:
        """Apply the topology; a broker that is busy with so many new partitions may need a second attempt."""
        topology = parse_topology(topology_text(self.name))
        try:
            apply_topology(self.bootstrap, topology, {})
        except (BrokerUnreachable, MissingTopic):
            time.sleep(5)
            apply_topology(self.bootstrap, topology, {})

    def _send(
        self, topic: str, partition: int, value: bytes, time_ms: int, headers: Headers | None = None
    ) -> None:
        place = f"{self.name}.{topic}", partition
        self._sent[place] += 1
        more = {"partition": partition, "timestamp": time_ms, "headers": headers or []}
        produce(self._producer, place[0], value, **more)

    def _set_timestamps(self, kind: str) -> None:
        """Let a producer say when a control record was appended, or forbid it again, as the product does."""
        entry = ConfigEntry("message.timestamp.type", kind, incremental_operation=AlterConfigOpType.SET)
        topics = ["ack-init", "ack", *(f"spout-{task}" for task in range(TASKS))]
        wanted = [
            ConfigResource(ResourceType.TOPIC, f"{self.name}.{topic}", incremental_configs=[entry])
            for topic in topics
        ]
        for future in self._admin.incremental_alter_configs(wanted).values():
            future.result()

    def _write_roots(self, first: int, behind: int, is_open: bool) -> None:
        """Write source records, inits, acks and results of some offsets of all partitions."""
        time_ms = self.end_ms - self.span_ms + self.span_ms * first // self.count
        offsets = np.arange(first, behind, dtype=np.int64)
        for _, partition, _ in self._slots:
            for _ in range(first, behind):
                self._send("events", partition, b"an event", time_ms)
        roots = np.concatenate([root_ids(slot, FIRST, offsets) for slot, _, _ in self._slots])
        tasks = np.repeat([task for _, _, task in self._slots], len(offsets))
        edges = self._edges.many(DEPTH * len(roots)).reshape(len(roots), DEPTH)
        if time_ms > self.end_ms - TUPLE_SPAN_MS:
            self._write_tuples(roots, edges, np.tile(offsets, len(self._slots)) % CHAINS, time_ms)
        ackers = (roots % np.uint64(PARTITIONS)).astype(np.int64)
        groups = ackers * TASKS + tasks
        order = np.argsort(groups, kind="stable")
        ends = np.searchsorted(groups[order], np.arange(PARTITIONS * TASKS + 1))
        for group in range(PARTITIONS * TASKS):
            mine = order[ends[group] : ends[group + 1]]
            if len(mine):
                self._write_control(*divmod(group, TASKS), roots[mine], edges[mine], time_ms, is_open)

    def _write_control(
        self, acker: int, task: int, roots: IdArray, edges: IdArray, time_ms: int, is_open: bool
    ) -> None:
        """Write one record of inits, one of acks by each bolt of a chain, and a result; open ones lack some.

        The consumer edges of a chain of tuples e0, e1, … are: e0 of the init, then each ack has its own and
        the next one's.
        """
        self._send(
            "ack-init", acker, encode_ack_init(AckInit(task, 1, _entries(roots, edges[:, 0]))), time_ms
        )
        for depth in range(DEPTH - is_open):
            values = edges[:, depth].copy()
            if depth + 1 < DEPTH:
                values ^= edges[:, depth + 1]
            worker = f"c{acker % CHAINS}d{depth}@worker-{acker % WORKERS_PER_BOLT}:1"
            self._send("ack", acker, encode_ack(Ack(worker, 1, _entries(roots, values))), time_ms + 100)
        if not is_open:
            self._send(f"spout-{task}", 0, encode_result(Result(acker, roots)), time_ms + 200)

    def _write_tuples(self, roots: IdArray, edges: IdArray, chains: NDArray[np.int64], time_ms: int) -> None:
        partition = 0
        for root, row, chain in zip(roots.tolist(), edges.tolist(), chains.tolist(), strict=True):
            for depth, edge in enumerate(row):
                partition = (partition + 1) % PARTITIONS
                header = encode_header(1, [Anchor(1, root, edge)])
                self._send(f"c{chain}d{depth}", partition, b"a tuple", time_ms, [(HEADER, header)])
                self.tuple_count += 1

    def _commit(self, published: Published) -> None:
        """Commit as ackers, bolts and the spout do while all is well."""
        control = {place: at for place, at in self._cuts.items() if ".ack" in place[0]}
        self._commit_group(published.acker_group, {place: (at, "") for place, at in control.items()})
        for bolt, table in published.bolts.items():
            places = {(topic, number) for topic in table.reads for number in range(PARTITIONS)}
            self._commit_group(published.group_of(bolt), {p: (self._sent[p], "") for p in places})
        spout, frontier = {}, self.count - PENDING
        for slot in (slot for slot in published.slots if slot.topic == self.source):
            spout[self.source, slot.partition] = frontier, OffsetSeal(1, slot.topic_id).text(frontier)
            state = encode_slot_state(SlotState(frontier, self.count, 1, serialized(BitMap64())))
            key = SlotKey(self.source, slot.partition, slot.topic_id).encode()
            produce(self._producer, published.state_topic("events"), state, key=key, partition=0)
        flush(self._producer)
        for task in range(TASKS):
            place = f"{self.name}.spout-{task}", 0
            at = self._cuts[place] + (self._sent[place] - self._cuts[place]) // 2
            spout[place] = at, ""
        self._commit_group(published.group_of("events"), spout)

    def _commit_group(self, group: str, offsets: dict[tuple[str, int], tuple[int, str]]) -> None:
        consumer = Consumer(consumer_settings(self.bootstrap, group, {}))
        wanted = [TopicPartition(*place, at, metadata=text) for place, (at, text) in offsets.items()]
        for committed in consumer.commit(offsets=wanted, asynchronous=False) or []:
            assert committed.error is None, committed.error
        consumer.close()

    def write_reports(self, seconds: float) -> None:
        """Write what all processes reported in the last ``seconds``."""
        makers = list(_report_makers(self.source, self.count))
        turns, now_ms = int(seconds / STATS_INTERVAL_S), int(time.time() * 1000)
        for turn in range(turns):
            time_ms = now_ms - int(1000 * STATS_INTERVAL_S) * (turns - 1 - turn)
            for role, component, instance, values_of in makers:
                report = Report(role, component, instance, time_ms, values_of(turn))
                self._send("stats", 0, report.encode(), time_ms)
                self.report_count += 1
        flush(self._producer)


def _entries(roots: IdArray, values: IdArray) -> EntryArray:
    entries = np.empty(len(roots), ENTRY)
    entries["root"], entries["value"] = roots, values
    return entries


Maker = tuple[str, str, str, Callable[[int], dict[str, Value]]]


def _report_makers(source: str, count: int) -> Iterator[Maker]:
    """Yield each of 100 processes with what makes its figures of a turn, as long as those of real ones."""
    for bolt in (f"c{chain}d{depth}" for chain in range(CHAINS) for depth in range(DEPTH)):
        for worker in range(WORKERS_PER_BOLT):
            yield "bolt", bolt, f"{bolt}@worker-{worker}:{worker + 1}", _bolt_values
    for acker in range(ACKERS):
        yield "acker", "acker", f"host-{acker}:{acker + 1}", _acker_values
    for task in range(TASKS):
        yield "spout", "events", f"events-{task}", partial(_spout_values, source, count, task)


def _bolt_values(turn: int) -> dict[str, Value]:
    done, busy_s = 70 * turn, 0.1 * turn
    counters = Counters(executed=done, emitted=done, acked=done)
    more = {"in_hand": 3, "paused": 0, "lag": 12, "busy_s": round(busy_s, 6), "process_s": round(busy_s, 6)}
    return {**asdict(counters), **more}


_ROOT_AGES: dict[str, Value] = {f"root_age_s.{number:016x}": 0.25 for number in range(1, OLDEST_ROOTS + 1)}


def _acker_values(turn: int) -> dict[str, Value]:
    figures = Figures().values({}, {})
    more = {
        "partitions": -(-PARTITIONS // ACKERS),
        "invalid": 0,
        "refolds": 0,
        "rebalances": 1,
        "failed_commits": 0,
        "behind_s": 0.0,
    }
    return {**figures, **more, "folded": 500 * turn, "oldest_root_age_s": 0.0, **_ROOT_AGES}


def _spout_values(source: str, count: int, task: int, turn: int) -> dict[str, Value]:
    names = (
        "emitted",
        "completed",
        "failed",
        "timed_out",
        "replayed",
        "dead_lettered",
        "absent",
        "pending_s",
    )
    values: dict[str, Value] = dict.fromkeys(names, 175 * turn)
    for partition in range(task, PARTITIONS, TASKS):
        place = f"{source}.{partition}"
        values |= {f"next.{place}": count, f"frontier.{place}": count - PENDING, f"held_s.{place}": 0.25}
        values[f"pending.{place}"] = PENDING
    return values
