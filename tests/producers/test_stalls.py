"""A stalled loop says so, and what it executes: in reports, metrics, its health and its log."""

import json
import logging
import urllib.error
import urllib.request

import pytest

from acktree.core import world
from acktree.core.reports.metrics_server import serve_reports
from acktree.core.reports.stats import decode_report
from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt, Spout
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.wire.ids import root_id
from deadlines import ANSWER_S
from producers.cluster import Forward, WorkerCluster, until

pytestmark = pytest.mark.simulated

ROOT = f"{root_id(0, 16, 3):016x}"


class Standing:
    """Stands still in the call that it is told to, until the test lets it go on."""

    def __init__(self):
        self.may_go_on, self.is_hanging = world.event(), world.event()

    def hang(self):
        self.is_hanging.set()
        self.may_go_on.wait()


class InExecute(Standing, BasicBolt):
    def execute(self, tup, emit):
        if tup.value == b"3":
            self.hang()


class InBatch(Standing, BatchBolt):
    def execute(self, tuples, collector):
        if b"3" in tuples.values:
            self.hang()


class InTick(Standing, Bolt):
    tick_interval_s = 0.01
    has_executed = False

    def execute(self, tup, collector):
        collector.ack(tup)
        self.has_executed = True

    def tick(self, collector):
        if self.has_executed:
            self.hang()


class InEventLoop(Standing, AsyncBolt):
    async def execute(self, tup, emit):
        if tup.value == b"3":
            self.hang()


def reports(cluster):
    """Return what is on T.stats, from the first report of a stall on."""
    found = [decode_report(record.value()) for record in cluster.read(f"{cluster.name}.stats")]
    return [report for report in found if "stalled_s" in report.values]


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
@pytest.mark.parametrize("kind", [InExecute, InBatch, InEventLoop])
def test_a_worker_that_hangs_reports_the_record_and_since_when(
    cluster: WorkerCluster, kind, exactly_once: bool
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    bolt = kind()
    worker = cluster.start(bolt, stuck_after_s=5.0)
    until(lambda: worker.worker.reports.newest, "a report of the moving loop")
    cluster.emit([3], 0)
    until(bolt.is_hanging.is_set, "the bolt hangs")
    until(lambda: worker.worker.progress.is_stuck, "the worker is stuck")
    until(lambda: any(r.values["stalled_s"] > 5 for r in reports(cluster)), "its report")
    (*_, report) = reports(cluster)
    assert (report.role, report.component, report.instance) == ("bolt", "only", worker.worker.task)
    assert report.values["executing"] == f"{cluster.topic('a')}/0/0"
    assert report.values["executing_root"] == ROOT
    assert report.values["in_hand"] == 1
    assert "lag" not in report.values, "nobody has measured it"
    if kind is not InEventLoop:
        assert report.values["busy_s"] > 4
    bolt.may_go_on.set()
    until(lambda: not worker.worker.progress.is_stuck, "it goes on")
    worker.stop()
    assert worker.acked == 1


def test_a_worker_that_hangs_between_tuples_names_the_call(cluster: WorkerCluster):
    cluster.apply(only=(["a"], ["b"]))
    bolt = InTick()
    worker = cluster.start(bolt)
    cluster.emit([3], 0)
    until(lambda: reports(cluster), "its report")
    assert reports(cluster)[-1].values["calling"] == "tick"
    assert "executing" not in reports(cluster)[-1].values
    bolt.may_go_on.set()
    worker.stop()


def test_a_spout_that_hangs_reports_it(cluster: WorkerCluster):
    class InNextTuple(Standing, Spout):
        def next_tuple(self, emitter):
            self.hang()

    cluster.apply(only=(["a"], ["b"]))
    spout = InNextTuple()
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout, stuck_after_s=5.0)
    thread = world.start_thread(worker.run, "spout")
    until(lambda: any(r.values["stalled_s"] > 5 for r in reports(cluster)), "its report")
    (*_, report) = reports(cluster)
    assert (report.role, report.values["calling"], worker.progress.is_stuck) == ("spout", "next_tuple", True)
    worker.stop()
    spout.may_go_on.set()
    thread.join(ANSWER_S)


def test_a_stuck_worker_logs_the_record_and_the_stack_once(cluster: WorkerCluster, caplog):
    cluster.apply(only=(["a"], ["b"]))
    bolt = InExecute()
    worker = cluster.start(bolt, stuck_after_s=5.0)
    cluster.emit([3], 0)
    with caplog.at_level(logging.ERROR):
        until(lambda: worker.worker.progress.stalled_s > 12, "stuck for long")
    (line,) = [record for record in caplog.records if record.__dict__.get("action") == "stuck"]
    assert f"{cluster.topic('a')}/0/0" in line.getMessage()
    assert ROOT in line.getMessage()
    bolt.may_go_on.set()
    worker.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
def test_a_broker_that_is_away_is_not_a_stall(cluster: WorkerCluster, simulation, exactly_once: bool):
    """A restart would not bring the broker back, and would start again and again."""
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    worker = cluster.start(Forward(), stuck_after_s=5.0)
    cluster.emit(range(10), 0)
    simulation.cluster.is_up = False
    progress = worker.worker.progress
    for _ in range(60):
        world.sleep(1)
        assert not progress.is_stuck
    if not exactly_once:  # a call of a transaction is given up after 10 s, in a turn of its own
        assert progress.broker_wait_s > 30
    simulation.cluster.is_up = True
    until(lambda: worker.acked == 10 and progress.turn_s < 1, "it goes on")
    worker.stop()


@pytest.mark.real
@pytest.mark.promise("a worker whose `execute` never returns")
def test_a_stuck_worker_fails_its_liveness_and_its_metrics_name_the_record(cluster: WorkerCluster, caplog):
    cluster.apply(only=(["a"], ["b"]))
    bolt = InExecute()
    worker = cluster.start(bolt, stuck_after_s=0.3)
    progress, made = worker.worker.progress, worker.worker.reports
    until(lambda: made.newest, "the first report")
    served = serve_reports(cluster.name, lambda: made.newest, 0, progress=progress)

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(served.url.replace("/metrics", path), timeout=ANSWER_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    status, body = ask("/health")
    assert (status, json.loads(body)["alive"]) == (200, True)
    assert "acktree_process_stuck_seconds{" not in ask("/metrics")[1]
    cluster.emit([3], 0)
    until(lambda: progress.is_stuck, "it is stuck")
    status, body = ask("/health")
    about = json.loads(body)
    place = f"{cluster.topic('a')}/0/0"
    assert (status, about["alive"]) == (503, False)
    assert (about["executing"], about["executing_root"]) == (place, ROOT)
    stuck = [
        line for line in ask("/metrics")[1].splitlines() if line.startswith("acktree_process_stuck_seconds{")
    ]
    assert len(stuck) == 1
    for label in (f'executing="{place}"', f'executing_root="{ROOT}"', 'component="only"', 'role="bolt"'):
        assert label in stuck[0]
    until(lambda: "in hang" in caplog.text, "the stack of the bolt's thread")
    bolt.may_go_on.set()
    until(lambda: ask("/health")[0] == 200, "it goes on")
    served.close()
    worker.stop()
