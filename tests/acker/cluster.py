"""A topology on a real or simulated Kafka: ackers to start, stop and kill, records, results to wait for."""

from contextlib import ExitStack
from itertools import count

import numpy as np
from confluent_kafka import TopicPartition

from acker.running_ackers import DEADLINE_S, AckerProcess, RunningAcker, SimulatedAckerProcess, wait_for
from acker.tester import entries, xor
from acktree.core import world
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.reports.stats import decode_report
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.wire.codec import decode_result, encode_ack, encode_ack_init
from acktree.wire.control_records import ID, Ack, AckInit, Cause, Fail

IDLE_ROOTS = 10**9
TOPOLOGY = """
name = "{name}"
ackers = {ackers}
message_timeout_s = {timeout_s}
orphan_timeout_s = {orphan_s}
[spouts.lines]
emits = ["{name}.words"]
tasks = {tasks}
[bolts.count]
reads = ["{name}.words"]
"""


class AckerCluster:
    """One topology: ``init``, ``ack`` and so on send at once; results are collected while waiting."""

    def __init__(
        self, bootstrap, name, folder=None, simulation=None, *, ackers=2, timeout_s=30, orphan_s=300, tasks=1
    ):
        self.bootstrap, self.name, self.folder, self.simulation = bootstrap, name, folder, simulation
        self.running, self.ackers, self.version = ExitStack(), {}, 0
        self.settings = {"timeout_s": timeout_s, "orphan_s": orphan_s, "tasks": tasks}
        self.apply(ackers)
        self.acked, self.failed, self.when = [], {}, {}
        self._idle = count(IDLE_ROOTS)
        self.appended_ms = 0  # when the broker appended what was sent last
        self._results = self.reader([f"{name}.spout-{task}" for task in range(tasks)])

    def apply(self, ackers, **changes):
        """Publish the topology with this many ackers; its records are of this version from here on."""
        text = TOPOLOGY.format(name=self.name, ackers=ackers, **(self.settings | changes))
        apply_topology(self.bootstrap, parse_topology(text), {})
        self.version += 1
        self.ackers[self.version] = ackers
        # A producer that has seen a topic does not learn of new partitions for minutes.
        self.producer = make_producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1})

    def reader(self, topics):
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.test"})
        consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
        self.running.callback(consumer.close)
        return consumer

    def close(self):
        self.running.close()

    # Ackers.

    def start(self, **settings):
        return self.join(**settings).await_ready()

    def join(self, **settings):
        """Start an acker without waiting until the group has taken it in."""
        acker = RunningAcker(self.bootstrap, self.name, **settings)
        self.running.callback(acker.stop)
        return acker

    def start_process(self, *options, **settings):
        """Start an acker in a process, to be killed; a simulated one in a simulation."""
        if self.simulation is None:
            acker = AckerProcess(self.bootstrap, self.name, self.folder, options, settings)
        else:
            acker = SimulatedAckerProcess(self.simulation, self.name, settings)
        self.running.callback(acker.kill)
        return acker

    # Records.

    def partition(self, root, version=None):
        return root % self.ackers[version or self.version]

    def init(self, root, *edges, task=0, version=None):
        return self.init_many([(root, xor(*edges))], task, version)

    def init_many(self, pairs, task=0, version=None):
        version = version or self.version
        for partition, part in self._by_partition(pairs, version).items():
            self.send("ack-init", partition, encode_ack_init(AckInit(task, version, entries(part))))
        return self

    def ack(self, root, *edges, version=None):
        return self.ack_many([(root, xor(*edges))], version)

    def ack_many(self, pairs, version=None):
        version = version or self.version
        for partition, part in self._by_partition(pairs, version).items():
            self.send("ack", partition, encode_ack(Ack("bolt-0", version, entries(part))))
        return self

    def fail(self, root, reason="broken"):
        record = Ack("bolt-0", self.version, fails=(Fail(root, reason),))
        return self.send("ack", self.partition(root), encode_ack(record))

    def reset(self, root):
        record = Ack("bolt-0", self.version, resets=np.array([root], ID))
        return self.send("ack", self.partition(root), encode_ack(record))

    def _by_partition(self, pairs, version):
        parts = {}
        for pair in pairs:
            parts.setdefault(self.partition(pair[0], version), []).append(pair)
        return parts

    def send(self, topic, partition, value):
        self.producer.produce(
            f"{self.name}.{topic}", value, partition=partition, on_delivery=self._on_delivery
        )
        self.producer.poll(0)
        return self

    def _on_delivery(self, error, message):
        if error is None:
            self.appended_ms = max(self.appended_ms, message.timestamp()[1])

    def let_log_time_pass(self, ms):
        """Send inits of trees that are done at once, until the broker appends them so much later."""
        self.init(next(self._idle), 0).sent()
        until_ms = self.appended_ms + ms
        wait_for(
            lambda: self.appended_ms >= until_ms,
            f"log time to go on by {ms} ms",
            DEADLINE_S + ms / 1000,
            lambda: (world.sleep(0.02), self.init(next(self._idle), 0).sent()),
        )
        return self

    def sent(self):
        """Wait until everything sent is with the broker."""
        assert self.producer.flush(DEADLINE_S) == 0
        return self

    # Finished trees.

    def collect(self):
        for message in self._results.consume(1000, 0.05):
            if message.error():
                continue
            result = decode_result(message.value())
            self.acked += result.acked.tolist()
            for root in result.acked.tolist():
                self.when.setdefault(root, message.timestamp()[1])
            for failure in result.failed:
                self.failed.setdefault(failure.root, failure)
                self.when.setdefault(failure.root, message.timestamp()[1])

    def await_acked(self, roots, deadline_s=DEADLINE_S):
        wanted = set(roots)
        self.sent()
        wait_for(lambda: wanted <= set(self.acked), "acked roots", deadline_s, self.collect)
        return self

    def await_failed(self, roots, deadline_s=DEADLINE_S):
        wanted = set(roots)
        self.sent()
        wait_for(lambda: wanted <= set(self.failed), "failed roots", deadline_s, self.collect)
        return self

    @property
    def timed_out(self):
        return {root for root, failure in self.failed.items() if failure.cause is Cause.TIMED_OUT}

    # What the broker knows.

    def places(self):
        topics, most = (f"{self.name}.ack-init", f"{self.name}.ack"), max(self.ackers.values())
        return [TopicPartition(topic, number) for topic in topics for number in range(most)]

    def committed(self):
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.acker"})
        try:
            return [max(place.offset, 0) for place in consumer.committed(self.places(), 10)]
        finally:
            consumer.close()

    def ends(self):
        return [self._results.get_watermark_offsets(place, 10)[1] for place in self.places()]

    def last_report(self):
        consumer = self.reader([f"{self.name}.stats"])
        reports = []
        wait_for(
            lambda: bool(reports),
            "a report",
            step=lambda: reports.extend(
                decode_report(m.value()) for m in consumer.consume(1000, 0.5) if not m.error()
            ),
        )
        return reports[-1]
