"""A topology on a real broker: ackers to start, stop and kill, records to send, results to wait for."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from itertools import count

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from acker.tester import entries, xor
from acktree.acker.service import Acker
from acktree.schemas.codec import decode_result, encode_ack, encode_ack_init
from acktree.schemas.control_records import ID, Ack, AckInit, Cause, Fail
from acktree.schemas.publish import apply_topology
from acktree.schemas.stats import decode_report
from acktree.schemas.topology import parse_topology

DEADLINE_S = 40
IDLE_ROOTS = 10**9
COMPILE_DEADLINE_S = 90  # the first start on a machine compiles
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


def wait_for(condition, what, deadline_s=DEADLINE_S, step=lambda: time.sleep(0.02)):
    """Wait until condition() is true; step() is called in between."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {deadline_s} s for {what}"
        step()


class RunningAcker:
    """An acker in a thread of this process."""

    def __init__(self, bootstrap, name, **settings):
        self.ready, self.error = [], None
        self.acker = Acker(bootstrap, name, user=settings, ready=self.ready.append)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.acker.run()
        except BaseException as error:
            self.error = error

    def await_ready(self):
        wait_for(lambda: self.ready or self.error, "the acker to be ready")
        assert self.error is None, self.error
        return self

    @property
    def partitions(self):
        return sorted(self.acker.ownership.partitions)

    def leave(self):
        """Begin to stop, without waiting for the end."""
        self.acker.stop()

    @property
    def is_gone(self):
        return not self._thread.is_alive()

    def stop(self):
        self.acker.stop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class AckerProcess:
    """An acker as users run it, to be killed."""

    def __init__(self, bootstrap, name, folder, options=(), **settings):
        options = [*options, *(text for item in settings.items() for text in ("-X", "=".join(item)))]
        command = [os.path.join(os.path.dirname(sys.executable), "acktree"), "acker", "run"]
        self._log = folder / f"acker-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--topology", name, "-b", bootstrap, *options], stderr=log, stdout=log
            )

    def log(self):
        return self._log.read_text()

    def await_ready(self):
        is_decided = lambda: "ready " in self.log() or self._process.poll() is not None  # noqa: E731
        wait_for(is_decided, "the acker to be ready", COMPILE_DEADLINE_S)
        assert self._process.poll() is None, self.log()
        return self

    def kill(self):
        self._process.kill()
        self._process.wait()

    def pause(self):
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)

    def stop(self):
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        return self._process.wait(DEADLINE_S)


class AckerCluster:
    """One topology: ``init``, ``ack`` and so on send at once; results are collected while waiting."""

    def __init__(self, bootstrap, name, folder=None, *, ackers=2, timeout_s=30, orphan_s=300, tasks=1):
        self.bootstrap, self.name, self.folder = bootstrap, name, folder
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
        self.producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1})

    def reader(self, topics):
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.test"})
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

    def start_process(self, **settings):
        acker = AckerProcess(self.bootstrap, self.name, self.folder, **settings)
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
            lambda: (time.sleep(0.02), self.init(next(self._idle), 0).sent()),
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
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.acker"})
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
