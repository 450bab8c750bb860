"""The worker on a real broker: outputs before offsets, offsets by frontier, nothing lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acktree.core import world
from acktree.core.reports.stats import decode_report
from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.errors import DeliveryFailed, UnknownComponent
from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.worker.loop import Worker
from acktree.wire.header import Anchor, encode_header
from acktree.wire.ids import origin_of
from deadlines import ANSWER_S
from producers.cluster import Sink, WorkerCluster, until

pytestmark = pytest.mark.simulated


class PassOrFail(BasicBolt):
    """Emits what it gets; fails for the given values."""

    def __init__(self, fails: tuple[bytes, ...] = ()) -> None:
        self.fails = fails

    def execute(self, tup, emit):
        if tup.value in self.fails:
            raise ValueError(f"cannot read {tup.value!r}")
        emit(tup.value, key=b"k" + tup.value)


class Hold(Bolt):
    """Holds the tuples of some values, acks the others; acks what it holds once ``release`` is set."""

    tick_interval_s = 0.01

    def __init__(self, *values: bytes) -> None:
        self.values, self.held, self.dropped, self.release = values, {}, [], False

    def execute(self, tup, collector):
        if tup.value in self.values:
            self.held[tup.value] = tup
        else:
            collector.ack(tup)

    def tick(self, collector):
        while self.release and self.held:
            collector.ack(self.held.popitem()[1])

    def drop(self, tuples):
        self.dropped += tuples


def test_a_chain_of_bolts_closes_every_tree_but_the_failed_one(cluster: WorkerCluster):
    cluster.apply(first=(["a"], ["b"]), second=(["b"], []))
    cluster.emit(range(3000))
    first = cluster.start(PassOrFail(fails=(b"7",)), "first")
    second = cluster.start(Sink(), "second")
    until(lambda: second.acked == 2999)
    first.stop()
    second.stop()
    assert {origin_of(root).offset for root in cluster.open_roots()} == {7}
    fails = [fail for ack in cluster.acks() for fail in ack.fails]
    assert [(origin_of(f.root).offset, f.reason) for f in fails] == [(7, "ValueError: cannot read b'7'")]
    assert sorted(int(r.value()) for r in cluster.read(cluster.topic("b"))) == [
        n for n in range(3000) if n != 7
    ]
    assert all(record.key() == b"k" + record.value() for record in cluster.read(cluster.topic("b")))
    assert cluster.committed("first") == cluster.ends()


def test_records_that_cannot_be_tuples_are_rejected_and_skipped(cluster: WorkerCluster):
    cluster.apply(only=(["a"], []))
    strange = Anchor(60_000, 5, 6)
    for header in (b"", b"broken", encode_header(60_000, []), encode_header(cluster.version, [strange])):
        cluster.write(b"x", header, 0)
    cluster.write(b"untracked", None, 0)
    cluster.emit([1], 0)
    worker = cluster.start(Sink())
    until(lambda: worker.acked == 2)
    worker.stop()
    assert worker.invalid == 4
    assert cluster.committed("only") == {0: 6}
    assert not cluster.open_roots()


def test_a_version_published_after_the_start_is_loaded(cluster: WorkerCluster):
    cluster.apply(only=(["a"], []))
    worker = cluster.start(Sink(), "only")
    cluster.apply(only=(["a"], []), other=(["a"], []))
    cluster.emit(range(10))
    until(lambda: worker.acked + worker.invalid == 10)
    assert worker.invalid == 0


def test_a_worker_follows_its_bolt_to_new_topics(cluster: WorkerCluster):
    cluster.apply(first=(["a"], ["b"]), second=(["b"], []))
    worker = cluster.start(Sink(), "second")
    cluster.apply(second=(["a", "b"], []))
    cluster.emit(range(10))
    until(lambda: worker.acked == 10)


def test_offsets_are_committed_up_to_the_smallest_tuple_in_hand(cluster: WorkerCluster):
    cluster.apply(only=(["a"], []))
    cluster.emit(range(10), 0)
    bolt = Hold(b"3", b"6")
    worker = cluster.start(bolt)
    until(lambda: cluster.committed("only") == {0: 3}, "commit at the first hole")
    assert worker.acked == 8
    bolt.release = True
    until(lambda: cluster.committed("only") == {0: 10}, "commit at the end")
    worker.stop()
    assert not cluster.open_roots()


def test_tuples_never_acked_are_counted_and_logged_and_only_these_are_executed_again(
    cluster: WorkerCluster, caplog
):
    cluster.apply(only=(["a"], []))
    cluster.emit(range(10), 0)
    worker = cluster.start(Hold(b"3"))
    until(lambda: worker.acked == 9)
    worker.stop()
    assert worker.never_acked == 1
    assert f"{cluster.topic('a')}[0]@3" in caplog.text
    assert cluster.committed("only") == {0: 3}
    again = cluster.start(Hold())
    until(lambda: cluster.committed("only") == {0: 10}, "the held one done, and the others passed over")
    assert (again.executed, again.acked) == (1, 1)
    again.stop()
    assert not cluster.open_roots()


def test_no_more_tuples_are_in_hand_than_the_bolt_allows(cluster: WorkerCluster):
    class TenInHand(Hold):
        max_in_hand = 10
        peak = 0

        def execute(self, tup, collector):
            self.held[tup.value] = tup
            self.peak = max(self.peak, len(self.held))

    cluster.apply(only=(["a"], []))
    cluster.emit(range(60))
    bolt = TenInHand()
    worker = cluster.start(bolt)
    until(lambda: len(bolt.held) == 10)
    assert worker.executed == 10
    bolt.release = True
    until(lambda: worker.acked == 60)
    assert bolt.peak == 10


def test_a_revoked_partition_is_committed_and_the_next_owner_reads_tuples_in_hand(
    cluster: WorkerCluster,
):
    cluster.apply(only=(["a"], []))
    for partition in range(2):
        cluster.emit(range(partition * 10, partition * 10 + 10), partition)
    values = tuple(b"%d" % (partition * 10 + 5) for partition in range(2))
    first, second = Hold(*values), Hold(*values)
    outputs = [AtLeastOnce(cluster.bootstrap, {}) for _ in range(2)]
    for output in outputs:
        output.commit_interval_s = 3600.0
    old = cluster.start(first, output=outputs[0])
    until(lambda: old.acked == 18 and len(first.held) == 2)
    new = cluster.start(second, output=outputs[1])
    until(lambda: old.executed + new.executed == 22, "what was in hand is executed again, nothing else")
    assert {tup.value for tup in first.dropped} == set(values)
    first.release = second.release = True
    until(lambda: old.acked + new.acked == 20, "everything acked")
    old.stop()
    new.stop()
    assert old.dropped == 2
    assert old.executed + new.executed == 22
    assert cluster.committed("only") == cluster.ends()


LARGE = b"x" * 5000


class BasicLarge(BasicBolt):
    def execute(self, tup, emit):
        emit(LARGE if tup.value == b"3" else tup.value)


class HeldLarge(Bolt):
    def execute(self, tup, collector):
        collector.emit(LARGE if tup.value == b"3" else tup.value, anchors=tup)
        collector.ack(tup)


class BatchLarge(BatchBolt):
    def execute(self, tuples, collector):
        collector.emit_many([LARGE if value == b"3" else value for value in tuples.values], tuples)


class AsyncLarge(AsyncBolt):
    async def execute(self, tup, emit):
        emit(LARGE if tup.value == b"3" else tup.value)


@pytest.mark.real
@pytest.mark.parametrize(
    ("bolt", "exactly_once"),
    [
        (BasicLarge, False),
        (BatchLarge, True),
        *(
            pytest.param(bolt, exactly_once, marks=pytest.mark.slow)
            for bolt, exactly_once in (
                (BasicLarge, True),
                (BatchLarge, False),
                (HeldLarge, False),
                (HeldLarge, True),
                (AsyncLarge, False),
                (AsyncLarge, True),
            )
        ),
    ],
)
def test_a_child_too_large_for_its_topic_fails_its_tuple_alone(
    cluster: WorkerCluster, bolt, exactly_once: bool
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.set_topic("b", max_message_bytes="1000")
    cluster.emit(range(1000), 0)
    worker = cluster.start(bolt())
    until(lambda: worker.error or worker.acked + worker.failed == 1000)
    worker.stop()
    until(lambda: sum(len(ack.acks) + len(ack.fails) for ack in cluster.acks()) == 1000, "all to be read")
    (fail,) = (fail for ack in cluster.acks() for fail in ack.fails)
    assert origin_of(fail.root).offset == 3
    assert fail.reason.startswith("TooLarge: a record of 50")
    assert cluster.topic("b") in fail.reason
    values = sorted(int(record.value()) for record in cluster.read(cluster.topic("b")))
    assert values == [number for number in range(1000) if number != 3]
    assert cluster.committed("only") == cluster.ends()


def test_if_a_limit_is_lowered_the_worker_stops_and_the_next_one_fails_the_tuple(
    cluster: WorkerCluster,
):
    cluster.apply(only=(["a"], ["b"]))
    worker = cluster.start(BasicLarge())
    cluster.set_topic("b", max_message_bytes="1000")
    cluster.emit(range(5), 0)
    worker.join()
    assert isinstance(worker.error, DeliveryFailed)
    done = cluster.committed("only").get(0, 0)
    assert done <= 3, "the child of record 3 is not in the log"
    again = cluster.start(BasicLarge())
    until(lambda: cluster.committed("only") == {0: 5})
    assert (again.acked, again.failed) == (4 - done, 1)


def test_prepare_and_cleanup_are_called_once_around_the_work(cluster: WorkerCluster):
    class Recording(Sink):
        calls: list[str]

        def prepare(self, context):
            self.calls = [f"prepare {context.bolt} {context.topology.version}"]

        def execute(self, tup, emit):
            self.calls.append("execute")

        def cleanup(self):
            self.calls.append("cleanup")

    cluster.apply(only=(["a"], []))
    cluster.emit([1])
    bolt = Recording()
    worker = cluster.start(bolt)
    until(lambda: worker.acked == 1)
    worker.stop()
    assert bolt.calls == ["prepare only 1", "execute", "cleanup"]


@pytest.mark.parametrize("name", [None, "nobody"])
def test_a_bolt_that_the_topology_does_not_have_is_refused(cluster: WorkerCluster, name):
    cluster.apply(one=(["a"], []), two=(["a"], []))
    with pytest.raises(UnknownComponent, match="one, two"):
        Worker(cluster.bootstrap, cluster.name, Sink(), name=name)


SLOW_BOLT = """
import os
from acktree.producers import BasicBolt

class Slow(BasicBolt):
    def prepare(self, context):
        self.file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def execute(self, tup, emit):
        os.write(self.file, tup.value + b"\\n")
        emit(tup.value)
"""


@pytest.mark.real
@pytest.mark.promise("a worker, at least once")
def test_a_worker_killed_with_signal_9_loses_nothing(cluster: WorkerCluster, tmp_path: Path):
    (tmp_path / "slow_bolt.py").write_text(SLOW_BOLT)
    seen = tmp_path / "seen"
    command = [sys.executable, "-m", "acktree.console.main", "bolt", "run", "slow_bolt:Slow"]
    command += ["-b", cluster.bootstrap, "--topology", cluster.name, "--bolt", "first"]
    command += ["-X", "session.timeout.ms=6000"]
    environment = {**os.environ, "SEEN": str(seen)}
    cluster.apply(first=(["a"], ["b"]), second=(["b"], []))
    total = 100_000
    cluster.emit(range(total))

    def lines() -> int:
        return seen.read_bytes().count(b"\n") if seen.exists() else 0

    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: lines() > 5_000)
    process.kill()
    process.wait()
    before = lines()
    assert before < total
    assert sum(cluster.committed("first").values()) <= before
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    until(lambda: cluster.committed("first") == cluster.ends(), "everything committed")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=ANSWER_S)
    assert process.returncode == 0, stderr
    assert any(line.startswith("ready bolt first") for line in stderr.splitlines())
    assert {int(record.value()) for record in cluster.read(cluster.topic("b"))} == set(range(total))


@pytest.mark.virtual
def test_a_worker_that_lost_its_partitions_drops_their_tuples_and_continues(
    cluster: WorkerCluster, simulation
):
    cluster.apply(only=(["a"], []))
    cluster.emit(range(3), 0)
    held = Hold(b"0", b"1", b"2")
    ready = world.event()
    process = simulation.start_process(
        lambda: Worker(cluster.bootstrap, cluster.name, held, ready=lambda _: ready.set()).run()
    )
    until(lambda: len(held.held) == 3, "the old worker holds them")
    simulation.kernel.stop(process, 15.0)
    new = cluster.start(Hold())
    until(lambda: new.acked == 3, "the other worker took over")
    until(lambda: len(held.dropped) == 3, "the old worker noticed")
    new.stop()
    assert cluster.committed("only") == {0: 3}
    simulation.kernel.kill(process)


def test_a_worker_reports_what_it_did_to_the_stats_topic(cluster: WorkerCluster):
    cluster.apply(only=(["a"], []))
    cluster.emit(range(5), 0)
    worker = cluster.start(Hold(b"3"))
    until(lambda: worker.acked == 4)
    worker.stop()
    last = decode_report(cluster.read(cluster.topic("stats"))[-1].value())
    assert (last.role, last.component, last.instance) == ("bolt", "only", worker.worker.task)
    values = last.values
    assert (values["executed"], values["acked"], values["never_acked"], values["in_hand"]) == (5, 4, 1, 1)
    assert values["lag"] == 0


def test_ticks_come_without_any_input(cluster: WorkerCluster):
    class TickCounter(Hold):
        ticks = 0

        def tick(self, collector):
            self.ticks += 1

    cluster.apply(only=(["a"], []))
    bolt = TickCounter()
    cluster.start(bolt)
    until(lambda: bolt.ticks >= 3)


def test_the_acks_of_a_slow_bolt_are_sent_while_it_executes_the_rest(cluster: WorkerCluster):
    seen, never = world.event(), world.event()

    class SlowUntilAcked(BasicBolt):
        left = 100

        def execute(self, tup, emit):
            never.wait(0.01)
            self.left -= 1
            if not self.left:
                assert seen.wait(50)

    cluster.apply(only=(["a"], []))
    cluster.emit(range(200), 0)
    worker = cluster.start(SlowUntilAcked())
    until(lambda: sum(len(ack.acks) for ack in cluster.acks()) >= 50 or worker.error, "the first acks")
    seen.set()
    until(lambda: worker.acked == 200 or worker.error)
    worker.stop()


@pytest.mark.parametrize("exactly_once", [False, True])
def test_the_last_flush_and_commit_happen_even_if_cleanup_raises(cluster: WorkerCluster, exactly_once):
    class Careless(Sink):
        def cleanup(self):
            raise OSError("the database is gone")

    cluster.apply(exactly_once, only=(["a"], []))
    cluster.emit(range(10), 0)
    output = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.only") if exactly_once else None
    output = output or AtLeastOnce(cluster.bootstrap, {})
    output.ack_interval_s = output.commit_interval_s = 1_000.0
    worker = cluster.start(Careless(), "only", output=output)
    until(lambda: worker.acked == 10)
    with pytest.raises(OSError, match="the database is gone"):
        worker.stop()
    assert cluster.committed("only") == {0: 10}
    assert not cluster.open_roots()


def test_a_join_with_one_side_full_still_reads_the_other(cluster: WorkerCluster):
    class BoundedJoin(Bolt):
        max_in_hand = 40

        def prepare(self, context):
            self.waiting = {}

        def execute(self, tup, collector):
            other = self.waiting.pop(tup.value, None)
            if other is None:
                self.waiting[tup.value] = tup
                return
            collector.ack(other)
            collector.ack(tup)

    cluster.apply(first=(["a"], ["b"]), join=(["a", "b"], []))
    cluster.emit(range(100), 0)
    join = cluster.start(BoundedJoin(), "join")
    until(
        lambda: join.worker.reports.newest and join.worker.reports.newest[0].values["paused"],
        "one side is full",
    )
    cluster.start(PassOrFail(), "first")
    until(lambda: join.acked == 200 or join.error, "both sides joined")
    join.stop()
    assert not cluster.open_roots()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_partition_that_was_paused_when_it_was_revoked_is_read_when_it_comes_back(
    cluster: WorkerCluster, protocol: str
):
    class AckLater(Bolt):
        max_in_hand = 10
        tick_interval_s = 0.01
        is_over = False

        def prepare(self, context):
            self.held = []

        def execute(self, tup, collector):
            self.held.append(tup)

        def tick(self, collector):
            if AckLater.is_over:
                for tup in self.held:
                    collector.ack(tup)
                self.held.clear()

    cluster.apply(only=(["a"], []))
    cluster.emit(range(100), 0)
    cluster.emit(range(100, 200), 1)
    user = {"group.protocol": protocol}
    workers = [cluster.start(AckLater(), user=user)]
    until(lambda: len(workers[0].worker._inputs.back_pressure.paused), "paused")
    paused = len(workers[0].worker._inputs.back_pressure.paused)
    workers.append(cluster.start(AckLater(), user=user))
    until(lambda: len(workers[1].worker._inputs.back_pressure.paused), "both paused")
    assert len(workers[0].worker._inputs.back_pressure.paused) < paused, "none was revoked"
    workers.pop().stop()
    AckLater.is_over = True
    until(lambda: workers[0].acked == 200 or workers[0].error, "all acked")
    workers[0].stop()
    assert not cluster.open_roots()


@pytest.mark.parametrize("exactly_once", [False, True])
def test_tuples_of_ended_trees_make_room_unless_they_were_reset_or_are_untracked(
    cluster: WorkerCluster, exactly_once: bool
):
    class Wait(Bolt):
        max_in_hand = 12
        tick_interval_s = 0.01

        def prepare(self, context):
            self.held, self.late = {}, []

        def execute(self, tup, collector):
            self.held[tup.value] = tup

        def tick(self, collector):
            if b"0" in self.held:
                collector.reset_timeout(self.held[b"0"])

        def timed_out(self, tup, collector):
            self.late.append(tup.value)

    cluster.message_timeout_s = 1
    cluster.apply(exactly_once, only=(["a"], []))
    cluster.emit([0], 0)
    cluster.write(b"no tree", None, 0)
    cluster.emit(range(1, 20), 0)
    bolt = Wait()
    worker = cluster.start(bolt, "only")
    until(lambda: worker.failed == 19 or worker.error, "all but two failed")
    worker.stop()
    assert bolt.late == [b"%d" % number for number in range(1, 20)]
    reasons = {origin_of(fail.root).offset: fail.reason for ack in cluster.acks() for fail in ack.fails}
    assert reasons == dict.fromkeys(range(1, 20), "held longer than the message timeout")
    assert cluster.committed("only") == {0: 0}
