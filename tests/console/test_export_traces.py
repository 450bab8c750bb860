"""Trees of failed, timed-out and slow records reach a real OTLP receiver, whole, and again after a crash."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import requests
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree.acker.service import Acker
from acktree.console.traces import export
from acktree.console.traces.export import TraceExport
from acktree.console.traces.finished import Selection, read_result
from acktree.console.traces.otlp import OtlpSender
from acktree.core import world
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import producer_settings
from acktree.producers import BasicBolt, Bolt, Spout
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.wire.trace_context import span_of_execution
from console.otlp_receiver import OK, OtlpReceiver, Received
from deadlines import ANSWER_S
from producers.cluster import WorkerCluster, until
from simulated_kafka import Simulation, run_in

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(240)]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
USER_SPAN = "00f067aa0ba902b7"
TRACED = [("traceparent", f"00-{TRACE}-{USER_SPAN}-01")]
SLOW_S = 1.0
METRICS_PAGE = Path(__file__).parents[2] / "docs/metrics.md"


class SplitLines(BasicBolt):
    """Emits a child for each word; nobody reads what is emitted for the word hang."""

    name = "split"

    def prepare(self, context):
        self.topology = context.topology.name

    def execute(self, tup, emit):
        for word in tup.value.split():
            emit(word, topic=f"{self.topology}.{'c' if word == b'hang' else 'b'}")


class CountedWords(Bolt):
    """Fails the word bad, and acks slow when it is told to."""

    name = "count"
    tick_interval_s = 0.05

    def __init__(self) -> None:
        self.held, self.release = [], Event()

    def execute(self, tup, collector):
        if tup.value == b"bad":
            collector.fail(tup, "ValueError: bad")
        elif tup.value == b"slow":
            self.held.append(tup)
        else:
            collector.ack(tup)

    def tick(self, collector):
        if self.release.is_set():
            while self.held:
                collector.ack(self.held.pop())


class GivenLines(Spout):
    """Emits what it is given; keeps what became of it."""

    def __init__(self) -> None:
        self.left: list[tuple[bytes, Any]] = []
        self.acked: list[bytes] = []
        self.failed: list[bytes] = []

    def next_tuple(self, emitter):
        while self.left:
            line, headers = self.left.pop(0)
            emitter.emit(line, line, headers=headers)

    def ack(self, message):
        self.acked.append(message.id)

    def fail(self, message, failure):
        self.failed.append(message.id)


class RunningTopology:
    """A spout, two bolts and an acker in threads, and exports to receivers."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.cluster = WorkerCluster(bootstrap, name)
        self.cluster.message_timeout_s = 4.0
        self.cluster.apply(split=(["a"], ["b", "c"]), count=(["b"], []), absent=(["c"], []))
        self.spout, self.count = GivenLines(), CountedWords()
        self.cluster.start(SplitLines())
        self.cluster.start(self.count)
        self._roles: list[Any] = [
            Acker(bootstrap, name),
            SpoutWorker(bootstrap, name, self.spout),
        ]
        self._threads = [world.start_thread(role.run, type(role).__name__) for role in self._roles]

    def skip(self, bolt: str, topic: str) -> bool:
        """Commit the end of each partition as a bolt that loses its tuples; return whether there were any."""
        group = f"{self.cluster.name}.{bolt}"
        consumer = make_consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": group})
        name = f"{self.cluster.name}.{topic}"
        places = [
            TopicPartition(name, number) for number in consumer.list_topics(name, 10).topics[name].partitions
        ]
        for place in places:
            place.offset = consumer.get_watermark_offsets(place, 10)[1]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
        return any(place.offset for place in places)

    def send(self, line: bytes, headers: Any = None) -> None:
        self.spout.left.append((line, headers))

    def export(self, receiver: OtlpReceiver, **more: Any) -> TraceExport:
        sender = OtlpSender(self.cluster.name, receiver.url, timeout_s=2)
        made = TraceExport(self.cluster.bootstrap, self.cluster.name, {}, sender, **more)
        self.run(made)
        return made

    def command(self, receiver: OtlpReceiver, *more: str) -> list[str]:
        """Return the command line of an export in a process of its own."""
        command = [sys.executable, "-m", "acktree.console.main", "export-traces", "--otlp", receiver.url]
        command += ["--topology", self.cluster.name, "-b", self.cluster.bootstrap]
        return [*command, "-X", "session.timeout.ms=6000", *more]

    def run(self, role: Any) -> None:
        self._roles.append(role)
        self._threads.append(world.start_thread(role.run, type(role).__name__))

    def committed(self) -> int:
        """Return the committed position on the only result topic."""
        consumer = make_consumer(
            {"bootstrap.servers": self.cluster.bootstrap, "group.id": f"{self.cluster.name}.traces"}
        )
        (place,) = consumer.committed([TopicPartition(f"{self.cluster.name}.spout-0", 0)], timeout=ANSWER_S)
        consumer.close()
        return max(place.offset, 0)

    def close(self) -> None:
        for role in self._roles:
            role.stop()
        for thread in self._threads:
            thread.join(ANSWER_S)
            assert not thread.is_alive()
        self.cluster.close()


@pytest.fixture
def topology(kafka: str, unique: str, simulation: Simulation | None) -> Iterator[RunningTopology]:
    made: list[RunningTopology] = []
    run_in(simulation, lambda: made.append(RunningTopology(kafka, unique)))
    yield made[0]
    run_in(simulation, made[0].close)


def emission_of(spans: list[Received]) -> Received:
    (found,) = [span for span in spans if "acktree.root" in span.attributes]
    return found


def test_the_trees_of_failed_timed_out_and_slow_records_are_exported_whole(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver]
):
    taken = receiver()
    export = topology.export(taken, slow_s=SLOW_S)
    topology.send(b"good words", TRACED)
    until(lambda: topology.spout.acked == [b"good words"])
    topology.send(b"one bad", TRACED)
    until(lambda: topology.spout.failed == [b"one bad"])
    topology.send(b"so slow")
    until(lambda: topology.count.held)
    time_held = world.monotonic_s() + SLOW_S + 0.5
    until(lambda: world.monotonic_s() > time_held)
    topology.count.release.set()
    until(lambda: b"so slow" in topology.spout.acked)
    topology.send(b"hang on")
    until(lambda: topology.skip("absent", "c"))
    until(lambda: b"hang on" in topology.spout.failed)
    until(lambda: len(taken.trees()) == 3)

    by_result = {emission_of(tree).attributes["acktree.result"]: tree for tree in taken.trees().values()}
    assert sorted(by_result) == ["acked", "failed", "timed out"]
    for tree in by_result.values():
        emission = emission_of(tree)
        assert emission.attributes["acktree.complete"] is True, emission.attributes
        ids = {span.span_id for span in tree}
        executions = [span for span in tree if span is not emission]
        assert {span.parent_id for span in executions if span.service == "split"} == {emission.span_id}
        (split,) = [span for span in executions if span.service == "split"]
        assert {span.parent_id for span in executions if span.service != "split"} == {split.span_id}
        partition = int(split.attributes["messaging.destination.partition.id"])
        place = f"{topology.cluster.name}.a", partition, split.attributes["messaging.kafka.offset"]
        assert split.span_id == span_of_execution("split", *place)
        assert all(emission.start_ns <= span.start_ns <= span.end_ns for span in tree)
        assert len(ids) == len(tree)

    failed = by_result["failed"]
    emission = emission_of(failed)
    assert (emission.trace_id, emission.parent_id) == (TRACE, USER_SPAN)
    assert (emission.is_error, emission.message) == (True, "ValueError: bad")
    errors = {span.service: span.message for span in failed if span.is_error}
    assert errors == {"s": "ValueError: bad", "count": "ValueError: bad"}
    assert len(failed) == 4

    slow = by_result["acked"]
    assert not any(span.is_error for span in slow)
    assert emission_of(slow).end_ns - emission_of(slow).start_ns > SLOW_S * 1e9
    assert len(slow) == 4

    hanging = by_result["timed out"]
    states = {span.service: span.attributes.get("acktree.state") for span in hanging[1:]}
    assert states == {"split": "done", "count": "done", "absent": "unmatched"}
    assert {span.service: span.message for span in hanging if span.is_error} == {
        "s": "timed out",
        "absent": "not acked when the tree was timed out",
    }
    assert export.counters["exported failed"] >= 1
    until(lambda: topology.committed() > 0)


def test_a_result_that_an_acker_sends_again_later_is_not_exported_again(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver]
):
    taken = receiver()
    export = topology.export(taken)
    topology.send(b"bad", TRACED)
    until(lambda: topology.committed() > 0)
    topic = f"{topology.cluster.name}.spout-0"
    (result,) = [record.value() for record in topology.cluster.read(topic) if read_result(record)[0]]
    producer = make_producer(producer_settings(topology.cluster.bootstrap, {}))
    producer.produce(topic, result, partition=0)
    assert producer.flush(30) == 0
    end = len(topology.cluster.read(topic))
    until(lambda: topology.committed() >= end)
    assert export.counters["exported failed"] == 1
    assert len({span.span_id for span in taken.spans}) == len(taken.spans) > 0


def test_spans_missed_by_a_receiver_that_was_down_are_sent_when_it_is_back(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver]
):
    is_up = Event()
    taken = receiver(lambda _spans: OK if is_up.is_set() else 503)
    export = topology.export(taken)
    topology.send(b"bad", TRACED)
    until(lambda: taken.refused >= 2)
    assert topology.committed() == 0
    topology.send(b"bad again", None)
    until(lambda: len(topology.spout.failed) == 2)
    is_up.set()
    until(lambda: len(taken.trees()) == 2)
    assert export.counters["failed_exports"] >= 1
    until(lambda: topology.committed() >= 2)


def test_only_a_tree_that_the_receiver_never_accepts_is_left_out_and_counted(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver]
):
    taken = receiver(lambda spans: 400 if any(span.trace_id == TRACE for span in spans) else OK)
    for number in range(3):
        topology.send(b"%d bad" % number, TRACED if number == 1 else None)
    until(lambda: len(topology.spout.failed) == 3)
    export = topology.export(taken)
    until(lambda: len(taken.trees()) == 2)
    until(lambda: topology.committed() > 0)
    assert (export.counters["refused"], export.counters["exported failed"]) == (1, 2)


def test_a_burst_of_failures_is_limited_and_omitted_trees_are_counted(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver], caplog: pytest.LogCaptureFixture
):
    count, limit = 300, 10
    for number in range(count):
        topology.send(b"%d bad" % number)
    until(lambda: len(topology.spout.failed) == count)
    taken = receiver()
    selection = Selection(per_minute=limit)
    export = topology.export(taken, selection=selection)
    until(lambda: topology.committed() > 0)
    exported = export.counters["exported failed"]
    assert exported == len(taken.trees())
    assert limit <= exported <= 2 * limit  # of one minute, or two
    assert selection.omitted["failed", "limit"] == count - exported
    until(lambda: any(getattr(line, "action", "") == "trees_omitted" for line in caplog.records))


def test_an_exporter_waits_while_a_partition_has_no_leader(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver], monkeypatch: pytest.MonkeyPatch
):
    read, refused = export.read_trees, list[int]()

    def refuse_once(*given: Any) -> Any:
        if not refused:
            refused.append(1)
            with clear_errors(topology.cluster.bootstrap):
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return read(*given)

    monkeypatch.setattr(export, "read_trees", refuse_once)
    taken = receiver()
    topology.export(taken)
    topology.send(b"bad", TRACED)
    until(lambda: taken.trees())
    assert refused


@pytest.mark.virtual
def test_damaged_results_keep_no_later_tree_from_being_exported(
    topology: RunningTopology,
    receiver: Callable[..., OtlpReceiver],
    simulation: Simulation,
    caplog: pytest.LogCaptureFixture,
):
    topology.send(b"bad", TRACED)
    until(lambda: topology.spout.failed == [b"bad"])
    log = simulation.cluster.log(f"{topology.cluster.name}.spout-0", 0)
    end = log.end_offset
    for offset in range(end):
        log.damage(offset)
    taken = receiver()
    topology.export(taken)
    until(lambda: topology.committed() == end)
    topology.send(b"bad again", TRACED)
    until(lambda: taken.trees())
    assert any(getattr(line, "action", "") == "invalid_record" for line in caplog.records)


@pytest.mark.virtual
def test_an_exporter_goes_on_where_the_log_of_results_ends_once_it_has_fallen(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver], simulation: Simulation
):
    taken = receiver()
    topology.export(taken)
    for number in range(3):
        topology.send(b"%d bad" % number)
        until(lambda number=number: len(taken.trees()) == number + 1)
    until(lambda: topology.committed() > 2)
    log = simulation.cluster.log(f"{topology.cluster.name}.spout-0", 0)
    log.truncate(log.end_offset - 2)
    end = log.end_offset
    until(lambda: topology.committed() == end)
    topology.send(b"bad again")
    until(lambda: len(taken.trees()) == 4)


@pytest.mark.real
def test_an_exporter_killed_between_export_and_commit_sends_the_same_spans_again(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver]
):
    processes: list[subprocess.Popen[bytes]] = []
    seen: list[set[tuple[str, str]]] = []

    def answer(spans: list[Received]) -> int:
        seen.append({(span.trace_id, span.span_id) for span in spans})
        if len(seen) == 1:
            os.kill(processes[0].pid, signal.SIGKILL)
        return OK

    taken = receiver(answer)
    topology.send(b"one bad", TRACED)
    topology.send(b"two bad")
    until(lambda: len(topology.spout.failed) == 2)
    command = topology.command(taken)
    processes.append(subprocess.Popen(command))
    assert processes[0].wait(ANSWER_S) == -signal.SIGKILL
    assert topology.committed() == 0
    processes.append(subprocess.Popen(command))
    until(lambda: topology.committed() > 0)
    processes[1].terminate()
    assert processes[1].wait(ANSWER_S) == 0
    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.real
@pytest.mark.slow
def test_an_exporter_that_was_removed_from_its_group_continues(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver]
):
    processes: list[subprocess.Popen[bytes]] = []
    group = f"{topology.cluster.name}.traces"
    admin = make_admin(topology.cluster.bootstrap, {})

    def is_empty() -> bool:
        return not admin.describe_consumer_groups([group])[group].result(ANSWER_S).members

    def answer(_spans: list[Received]) -> int:
        if not seen:
            seen.append(1)
            os.kill(processes[0].pid, signal.SIGSTOP)
            until(is_empty)
            os.kill(processes[0].pid, signal.SIGCONT)
        return OK

    seen: list[int] = []
    taken = receiver(answer)
    topology.send(b"bad", TRACED)
    until(lambda: topology.spout.failed)
    processes.append(subprocess.Popen(topology.command(taken)))
    until(lambda: processes[0].poll() is not None or topology.committed() > 0)
    assert processes[0].poll() is None
    processes[0].terminate()
    assert processes[0].wait(ANSWER_S) == 0
    assert len(taken.trees()) == 1


@pytest.mark.real
@pytest.mark.slow
def test_an_exporter_serves_metrics_of_its_work(
    topology: RunningTopology, receiver: Callable[..., OtlpReceiver]
):
    topology.send(b"bad", TRACED)
    until(lambda: topology.spout.failed)
    process = subprocess.Popen(
        topology.command(receiver(), "--metrics-port", "0"), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        (url,) = re.findall(r"^metrics (http://127\.0\.0\.1:\d+/metrics)$", process.stderr.readline(), re.M)
        exported = f'acktree_traces_exported_total{{result="failed",topology="{topology.cluster.name}"}} 1.0'
        until(lambda: exported in requests.get(url, timeout=ANSWER_S).text)
        found = requests.get(url, timeout=ANSWER_S).text
        assert requests.get(url.replace("/metrics", "/health"), timeout=ANSWER_S).status_code == 200
    finally:
        process.terminate()
        process.stderr.close()
    assert process.wait(ANSWER_S) == 0
    documented = re.findall(r"^(acktree_traces_\w+_total){", METRICS_PAGE.read_text(), re.M)
    assert set(re.findall(r"^# TYPE (acktree_traces_\w+_total) counter$", found, re.M)) == set(documented)
    spans = re.search(r"^acktree_traces_spans_total{.*} (\d+)", found, re.M)
    assert spans is not None
    assert int(spans[1]) > 1
    for name in ("refused", "broken", "failed_exports", "rejected_spans"):
        assert re.search(rf"^acktree_traces_{name}_total{{.*}} 0\.0$", found, re.M), name
