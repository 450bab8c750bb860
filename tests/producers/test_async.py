"""AsyncBolt: bounded concurrency, completion in any order, one event loop; in the double and on a broker."""

import asyncio
import threading
from collections import Counter, defaultdict

import pytest

from acktree.producers import AsyncBolt
from acktree.producers.errors import BadHandler, EmitAfterAck
from acktree.producers.testing import BoltDouble
from acktree.producers.worker.executing.execution import HELD_TOO_LONG
from acktree.wire.ids import origin_of
from producers.cluster import WorkerCluster, until

pytestmark = pytest.mark.simulated


class Gate(AsyncBolt):
    """Emits what it gets; holds the tuples of some values until the gate is opened."""

    def __init__(self, *values: bytes) -> None:
        self.values, self.held, self.cancelled, self.peak, self.now = values, [], [], 0, 0

    async def prepare(self, context):
        self.open, self.loop = asyncio.Event(), asyncio.get_running_loop()
        self.threads = {threading.get_ident()}

    async def execute(self, tup, emit):
        self.now += 1
        self.peak = max(self.peak, self.now)
        self.threads.add(threading.get_ident())
        try:
            if tup.value in self.values:
                self.held.append(tup.value)
                await self.open.wait()
            emit(tup.value)
        except asyncio.CancelledError:
            self.cancelled.append(tup.value)
            raise
        finally:
            self.now -= 1

    def release(self) -> None:
        self.loop.call_soon_threadsafe(self.open.set)


def test_tuples_end_in_any_order_and_all_calls_come_from_the_loops_thread(cluster: WorkerCluster):
    cluster.apply(only=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    bolt = Gate(b"3", b"6")
    worker = cluster.start(bolt)
    until(lambda: cluster.committed("only") == {0: 3}, "commit at the first hole")
    assert worker.acked == 8
    bolt.release()
    until(lambda: cluster.committed("only") == {0: 10}, "commit at the end")
    worker.stop()
    assert {int(record.value()) for record in cluster.read(cluster.topic("b"))} == set(range(10))
    assert len(bolt.threads) == 1


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_stop_drops_waiting_tuples_and_logs_unfinished_ones_to_execute_again(
    cluster: WorkerCluster, caplog, exactly_once: bool
):
    class ImpatientGate(Gate):
        max_concurrent = 2
        finish_timeout_s = 0.05

    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    bolt = ImpatientGate(b"3", b"5")
    worker = cluster.start(bolt)
    until(lambda: len(bolt.held) == 2 and worker.acked == 4)
    worker.stop()
    assert sorted(bolt.cancelled) == [b"3", b"5"]
    assert (worker.never_acked, worker.dropped, worker.failed) == (2, 2, 0), "no more were read"
    assert f"{cluster.topic('a')}[0]@3" in caplog.text
    assert cluster.committed("only") == {0: 3}
    again = cluster.start(Gate())
    until(lambda: cluster.committed("only") == {0: 10})
    assert again.executed == 6
    again.stop()
    assert not cluster.open_roots()
    values = sorted(int(record.value()) for record in cluster.read(cluster.topic("b")))
    assert values == list(range(10))


def test_no_more_tuples_are_executed_concurrently_than_the_bolt_allows(cluster: WorkerCluster):
    class SevenAtOnce(Gate):
        max_concurrent = 7

        async def execute(self, tup, emit):
            self.now += 1
            self.peak = max(self.peak, self.now)
            await asyncio.sleep(0.0001)
            self.now -= 1

    cluster.apply(only=(["a"], []))
    cluster.emit(range(2000))
    bolt = SevenAtOnce()
    worker = cluster.start(bolt)
    until(lambda: worker.acked == 2000)
    assert bolt.peak == 7


def test_a_rebalance_waits_for_tuples_being_executed_and_each_child_is_written_once(cluster: WorkerCluster):
    class SlowAwait(Gate):
        max_concurrent = 4
        pause_s = 0.01

        async def execute(self, tup, emit):
            await asyncio.sleep(SlowAwait.pause_s)
            emit(tup.value)

    cluster.apply(exactly_once=True, only=(["a"], ["b"]))
    for partition in range(2):
        cluster.emit(range(partition * 3000, partition * 3000 + 3000), partition)
    first = cluster.start(SlowAwait())
    until(lambda: first.acked > 10)
    second = cluster.start(SlowAwait())
    until(lambda: second.acked, "the second one has a partition")
    SlowAwait.pause_s = 0
    until(lambda: cluster.committed("only") == cluster.ends())
    first.stop()
    second.stop()
    assert first.acked + second.acked == 6000
    values = sorted(int(record.value()) for record in cluster.read(cluster.topic("b")))
    assert values == list(range(6000))
    assert not cluster.open_roots()


def test_a_tuple_lost_in_a_rebalance_emits_and_acks_nothing():
    bolt = Gate(b"x")
    double = BoltDouble(bolt, emits=["b"])
    double.begin(b"x")
    until(lambda: bolt.held)
    double.take_away()
    until(lambda: bolt.cancelled == [b"x"])
    until(lambda: double.tick() or not double.is_busy)
    assert (double.emitted, double.acked, double.failed, set(double.open)) == ([], set(), {}, {0})
    double.close()


def test_an_emission_after_the_end_is_refused_and_counted(caplog: pytest.LogCaptureFixture):
    class EmitAfterEnd(AsyncBolt):
        async def prepare(self, context):
            self.go, self.loop = asyncio.Event(), asyncio.get_running_loop()

        async def execute(self, tup, emit):
            self.emit, self.later = emit, asyncio.ensure_future(self.emit_later())

        async def emit_later(self):
            await self.go.wait()
            try:
                self.emit(b"late")
            except EmitAfterAck:
                pass

    bolt = EmitAfterEnd()
    double = BoltDouble(bolt)
    double.give(b"x")
    bolt.loop.call_soon_threadsafe(bolt.go.set)
    until(bolt.later.done)
    double.tick()
    assert (double.emitted, double.acked, double.counters.misuses) == ([], {0}, 1)
    assert "EmitAfterAck: cannot emit for Tuple(in[0]@0, acked): its execute has ended" in caplog.text


def test_an_error_that_ends_the_event_loop_ends_the_run_after_the_bolts_cleanup():
    class Leaves(AsyncBolt):
        is_cleaned_up = False

        async def execute(self, tup, emit):
            raise SystemExit(3)

        async def cleanup(self):
            Leaves.is_cleaned_up = True

    double = BoltDouble(Leaves())
    with pytest.raises(SystemExit):
        double.give(b"x")
    with pytest.raises(SystemExit):
        double.close()
    assert Leaves.is_cleaned_up


def test_a_cancelled_await_inside_execute_fails_the_tuple():
    class Cancels(AsyncBolt):
        async def execute(self, tup, emit):
            emit(b"not sent")
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    double = BoltDouble(Cancels())
    double.give(b"x")
    assert (double.failed, double.emitted) == ({0: "CancelledError: "}, [])


def test_timeouts_and_task_groups_work_inside_execute():
    class Modern(AsyncBolt):
        async def execute(self, tup, emit):
            async with asyncio.timeout(10), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            emit(tup.value)

    double = BoltDouble(Modern())
    double.give(*(b"%d" % number for number in range(300)))
    assert (len(double.acked), set(double.open)) == (300, set())
    double.close()


def test_the_double_does_not_wait_forever(monkeypatch):
    monkeypatch.setattr("acktree.producers.testing.END_TIMEOUT_S", 0.05)
    double = BoltDouble(Gate(b"x"))
    with pytest.raises(TimeoutError, match=r"tuples \[0\] did not finish"):
        double.give(b"x")
    double.close()


def test_prepare_and_cleanup_run_on_the_event_loop_and_a_reset_is_sent():
    class ResetWhileAwaited(Gate):
        async def execute(self, tup, emit):
            emit.reset_timeout()

        async def cleanup(self):
            self.cleaned_on = asyncio.get_running_loop()

    bolt = ResetWhileAwaited()
    double = BoltDouble(bolt)
    double.give(b"x", b"y")
    double.close()
    assert double.resets == [0, 1]
    assert bolt.cleaned_on is bolt.loop


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_tuple_executed_beyond_the_message_timeout_is_cancelled_and_fails_alone(
    cluster: WorkerCluster, caplog, exactly_once: bool
):
    class TwoAtOnce(Gate):
        max_concurrent = 2

    cluster.message_timeout_s = 1.0
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    bolt = TwoAtOnce(b"3", b"5")
    worker = cluster.start(bolt)
    until(lambda: cluster.committed("only") == {0: 10} or worker.error, "all are out of hand")
    worker.stop()
    assert sorted(bolt.cancelled) == [b"3", b"5"]
    assert (worker.executed, worker.acked, worker.failed, worker.never_acked) == (10, 8, 2, 0)
    fails = {origin_of(fail.root).offset: fail.reason for ack in cluster.acks() for fail in ack.fails}
    assert fails == {3: HELD_TOO_LONG, 5: HELD_TOO_LONG}
    assert {origin_of(root).offset for root in cluster.open_roots()} == {3, 5}
    assert HELD_TOO_LONG in caplog.text


def test_a_tuple_whose_timeout_is_reset_in_time_may_be_executed_for_longer(cluster: WorkerCluster):
    class Renews(Gate):
        resets = 0

        async def execute(self, tup, emit):
            while not self.open.is_set():
                emit.reset_timeout()
                self.resets += 1
                await asyncio.sleep(0.1)

    cluster.message_timeout_s = 1.0
    cluster.apply(only=(["a"], []))
    cluster.emit(range(1), 0)
    bolt = Renews()
    worker = cluster.start(bolt)
    until(lambda: bolt.resets == 30 or worker.failed or worker.error)
    bolt.release()
    until(lambda: worker.acked == 1 or worker.failed or worker.error)
    worker.stop()
    assert (worker.acked, worker.failed) == (1, 0)


class Stubborn(AsyncBolt):
    """Swallows the cancellation of b"x"; checks that other tuples are not cancelled."""

    max_concurrent = 1

    async def prepare(self, context):
        self.loop, self.open, self.seen = asyncio.get_running_loop(), asyncio.Event(), []

    async def execute(self, tup, emit):
        self.seen.append(tup.value)
        if tup.value == b"x":
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.seen.append(b"cancelled")
        else:
            assert asyncio.current_task().cancelling() == 0
        emit(tup.value)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_bolt_that_swallows_a_cancellation_emits_nothing_and_continues(monkeypatch, exactly_once: bool):
    bolt = Stubborn()
    double = BoltDouble(bolt, exactly_once=exactly_once)
    with monkeypatch.context() as patience:
        patience.setattr("acktree.producers.testing.END_TIMEOUT_S", 0.05)
        with pytest.raises(TimeoutError):
            double.give(b"x", b"y")
    double.time_out()
    assert double.failed == {0: HELD_TOO_LONG}
    double.give(b"z")
    assert bolt.seen == [b"x", b"cancelled", b"y", b"z"]
    assert {emission.value for emission in double.emitted} == {b"y", b"z"}
    assert (double.acked, double.failed, double.in_hand) == ({1, 2}, {0: HELD_TOO_LONG}, [])
    assert (double.counters.executed, double.counters.misuses) == (3, 0)
    double.close()


def test_a_waiting_tuple_is_executed_however_long_it_has_waited(monkeypatch):
    bolt = Stubborn()
    double = BoltDouble(bolt)
    with monkeypatch.context() as patience:
        patience.setattr("acktree.producers.testing.END_TIMEOUT_S", 0.05)
        with pytest.raises(TimeoutError):
            double.give(b"x", b"y")
    assert double.in_hand == [0, 1]
    double.time_out()
    assert 1 not in double.failed
    double.give()
    assert (double.acked, double.failed) == ({1}, {0: HELD_TOO_LONG})
    double.close()


class KeyedPauses(AsyncBolt):
    """Takes longer for the first tuples of a key; says which were executed at once, and in which order."""

    order = "key"
    max_concurrent = 50

    def __init__(self, *fails: bytes) -> None:
        self.fails, self.now, self.at_once = fails, Counter(), 0
        self.orders = defaultdict(list)

    async def execute(self, tup, emit):
        self.now[tup.key] += 1
        assert tup.key is None or self.now[tup.key] == 1, "two of one key at once"
        self.at_once = max(self.at_once, self.now.total())
        self.orders[tup.key].append(int(tup.value))
        await asyncio.sleep(1.0 / len(self.orders[tup.key]))
        self.now[tup.key] -= 1
        if tup.value in self.fails:
            raise ValueError("this one")
        emit(tup.value)


def test_tuples_of_one_key_are_executed_in_order_and_others_concurrently():
    bolt = KeyedPauses(b"4")
    double = BoltDouble(bolt)
    for number in range(12):
        double.begin(b"%d" % number, key=b"%d" % (number % 3))
    for number in range(12, 15):
        double.begin(b"%d" % number)
    double.give()
    assert bolt.orders == {b"0": [0, 3, 6, 9], b"1": [1, 4, 7, 10], b"2": [2, 5, 8, 11], None: [12, 13, 14]}
    assert bolt.at_once == 6, "one of each key, and all without"
    assert (double.failed.keys(), len(double.acked)) == ({4}, 14)


def test_an_invalid_order_is_refused():
    with pytest.raises(BadHandler, match=r"order must be one of any, key, not 'partition'"):
        BoltDouble(type("Wrong", (KeyedPauses,), {"order": "partition"})())


def test_no_more_large_tuples_and_children_are_in_memory_than_fit(cluster: WorkerCluster, monkeypatch):
    class EmitsTwice(AsyncBolt):
        now = peak = 0

        async def execute(self, tup, emit):
            emit(tup.value * 2)
            self.now += 1
            self.peak = max(self.peak, self.now)
            await asyncio.sleep(0.1)
            self.now -= 1

    monkeypatch.setattr("acktree.producers.worker.executing.async_execution.MAX_HELD_BYTES", 100_000)
    cluster.apply(only=(["a"], ["b"]))
    bolt = EmitsTwice()
    for _ in range(200):
        cluster.write(b"x" * 10_000, None, 0)
    cluster.flush()
    worker = cluster.start(bolt)
    until(lambda: worker.acked == 200 or worker.error, "all")
    worker.stop()
    assert bolt.peak == 10
