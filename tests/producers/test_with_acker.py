"""Spout, bolts and an acker together: results, failures with their reasons, untracked tuples."""

import re
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import Message as Record

from acktree.acker.service import Acker
from acktree.console.main import main
from acktree.core import world
from acktree.core.world import Thread
from acktree.producers import BasicBolt, Bolt, Spout
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.worker.executing.execution import HELD_TOO_LONG
from acktree.wire.control_records import Cause
from deadlines import ANSWER_S
from producers.cluster import Forward, WorkerCluster, until
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated


class Source(Spout):
    """Emits each number once, as its own message id; records acks and fails."""

    def __init__(self, count: int) -> None:
        self.left, self.acked, self.failed = list(range(count)), set(), {}

    def next_tuple(self, emitter):
        if self.left:
            number = self.left.pop(0)
            emitter.emit(str(number), number)

    def ack(self, message):
        self.acked.add(message.id)

    def fail(self, message, failure):
        self.failed[message.id] = failure


class Poisoned(BasicBolt):
    """Cannot read the value 1."""

    def execute(self, tup, emit):
        if tup.value == b"1":
            raise ValueError(f"cannot read {tup.value!r}")


class Unanchored(Bolt):
    def execute(self, tup, collector):
        collector.emit(tup.value, anchors=())
        collector.ack(tup)


class Join(Bolt):
    """Joins two tuples of the same value from two bolts."""

    def prepare(self, context):
        self.first = {}

    def execute(self, tup, collector):
        other = self.first.pop(tup.value, None)
        if other is None:
            self.first[tup.value] = tup
            return
        collector.emit(tup.value, anchors=[other, tup])
        collector.ack(other)
        collector.ack(tup)


class Patient(Bolt):
    """Holds everything; resets the timeout of the value 0 again and again."""

    tick_interval_s = 0.1

    def __init__(self) -> None:
        self.held, self.release = {}, False

    def execute(self, tup, collector):
        self.held[tup.value] = tup

    def tick(self, collector):
        if b"0" not in self.held:
            return
        if self.release:
            collector.ack(self.held.pop(b"0"))
        else:
            collector.reset_timeout(self.held[b"0"])


class ReemittingSource(Source):
    """Emits failed messages again, so that failures of one message are a message timeout apart.

    The acker and the worker that holds the tuple race for which one detects the timeout.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.timeouts = []

    def fail(self, message, failure):
        assert failure.cause is Cause.TIMED_OUT or failure.reason == HELD_TOO_LONG
        self.timeouts.append(message.id)
        self.left.append(message.id)


Start = Callable[[Spout], SpoutWorker]


@pytest.fixture
def start(cluster: WorkerCluster, simulation: Simulation | None) -> Iterator[Start]:
    """Start an acker and the spout in threads of their own."""
    running: list[Acker | SpoutWorker] = []
    threads: list[Thread] = []

    def go(role: Acker | SpoutWorker) -> None:
        running.append(role)
        threads.append(world.start_thread(role.run, type(role).__name__))

    def begin(spout: Spout) -> SpoutWorker:
        go(Acker(cluster.bootstrap, cluster.name))
        worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
        go(worker)
        return worker

    def end() -> None:
        for role in running:
            role.stop()
        for thread in threads:
            thread.join(ANSWER_S)
            assert not thread.is_alive()

    yield begin
    run_in(simulation, end)


class GivesUpSource(Source):
    """Leaves failures to the worker, and reads the dead letters when it hears of one."""

    def __init__(self, count: int, read: Callable[[], list[Record]]) -> None:
        super().__init__(count)
        self.read, self.ended, self.asked = read, [], []

    def retry(self, attempt, reason):  # type: ignore[override]
        self.asked.append((attempt, reason))
        return 0.05 if attempt < 3 else None

    def gave_up(self, message, failure):
        self.ended.append((message.id, failure.attempts, failure.reason, self.read()))


@pytest.mark.real
@pytest.mark.promise("4")
@pytest.mark.promise("one source record that always fails")
def test_a_message_is_given_up_once_its_dead_letter_is_in_the_log_and_listed(
    cluster: WorkerCluster, start: Start
):
    cluster.apply(only=(["a"], []))
    cluster.start(Poisoned())
    spout = GivesUpSource(20, lambda: cluster.read(cluster.topic("dead-letter")))
    start(spout)
    until(lambda: len(spout.acked) == 19 and spout.ended)
    ((message_id, attempts, reason, (record,)),) = spout.ended
    assert (message_id, attempts, reason, spout.failed) == (1, 3, "ValueError: cannot read b'1'", {})
    assert spout.asked == [(attempt, reason) for attempt in (1, 2, 3)]
    assert record.value() == b"1"
    if world.is_simulated():
        return
    place = ["--topology", cluster.name, "--bootstrap-server", cluster.bootstrap]
    listed = CliRunner().invoke(main, ["dead-letter", "list", *place])
    assert "spout s" in listed.output, listed.output
    shown = CliRunner().invoke(main, ["dead-letter", "show", "0", *place])
    assert re.search(r"^message +1$", shown.output, re.MULTILINE), shown.output
    for more in (["0"], ["--all"]):
        answer = CliRunner().invoke(main, ["dead-letter", "replay", *more, *place])
        assert answer.exit_code == 2
        assert "fed by Python code, so there is no source record" in answer.output


@pytest.mark.real
def test_a_poison_tuple_fails_with_type_text_and_task_and_holds_no_other_back(
    cluster: WorkerCluster, start: Start
):
    cluster.apply(only=(["a"], []))
    worker, spout = cluster.start(Poisoned()), Source(50)
    start(spout)
    until(lambda: len(spout.acked) == 49 and spout.failed, "all but one acked")
    failure = spout.failed[1]
    assert (failure.cause, failure.reason) == (Cause.FAILED, "ValueError: cannot read b'1'")
    assert failure.task == worker.worker.task
    assert failure.task.startswith("only@")


@pytest.mark.parametrize("exactly_once", [False, True])
def test_two_bolts_read_one_topic_and_a_join_behind_them_closes_every_tree(
    cluster: WorkerCluster, start: Start, exactly_once: bool
):
    cluster.apply(exactly_once, left=(["a"], ["l"]), right=(["a"], ["r"]), join=(["l", "r"], ["j"]))
    cluster.apply(exactly_once, end=(["j"], []))
    for bolt, name in ((Forward(), "left"), (Forward(), "right"), (Join(), "join"), (Poisoned(), "end")):
        cluster.start(bolt, name)
    spout = Source(50)
    start(spout)
    until(lambda: len(spout.acked) + len(spout.failed) == 50, "a result for each")
    assert set(spout.failed) == {1}
    assert spout.failed[1].task.startswith("end@")


def test_a_failure_behind_an_unanchored_emission_fails_no_message(cluster: WorkerCluster, start: Start):
    cluster.apply(first=(["a"], ["b"]), second=(["b"], []))
    cluster.start(Unanchored(), "first")
    second, spout = cluster.start(Poisoned(), "second"), Source(3)
    start(spout)
    until(lambda: len(spout.acked) == 3 and second.failed == 1 and second.acked == 2)
    assert not spout.failed


def test_a_reset_keeps_a_slow_tuple_from_timing_out(cluster: WorkerCluster, start: Start):
    cluster.message_timeout_s = 3.0
    cluster.apply(only=(["a"], []))
    bolt, spout = Patient(), ReemittingSource(2)
    worker = cluster.start(bolt)
    start(spout)
    until(lambda: len(spout.timeouts) >= 2 or worker.error, "two message timeouts, one after the other")
    bolt.release = True
    until(lambda: spout.acked or worker.error, "the tuple that was held all the time acked")
    assert spout.acked == {0}
    assert set(spout.timeouts) == {1}
