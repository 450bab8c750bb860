"""A bolt that stands still makes no storm: trees whose tuples wait unread for it stay open."""

import pytest

from acktree.producers import BasicBolt, Bolt
from acktree.schemas import world
from acktree.testing import TopologyTester

RECORDS, STOPPED_S = 185, 170.0
TOPOLOGY = """
name = "clicks"
ackers = 2
message_timeout_s = 30
[spouts.clicks]
topics = ["clicks"]
emits = ["clicks.parsed"]
[bolts.count]
reads = ["clicks.parsed"]
[bolts.archive]
reads = ["clicks.parsed"]
"""


class Executed(BasicBolt):
    """Keeps what it was given."""

    def __init__(self):
        self.values = []

    def execute(self, tup, emit):
        self.values.append(tup.value)


class HoldsFirst(Bolt):
    """Holds its first tuple without an ack, as a join does that waits for the other side."""

    held = None

    def execute(self, tup, collector):
        if self.held is None:
            self.held = tup
        else:
            collector.ack(tup)


@pytest.fixture
def topology(tmp_path):
    path = tmp_path / "topology.toml"
    path.write_text(TOPOLOGY)
    return path


def stage(row):
    yield {"value": row.value}


@pytest.fixture
def started(topology_tester, topology):
    archive = Executed()

    def start(count=Executed) -> tuple[TopologyTester, Executed]:
        bolts = {"count": count, "archive": archive}
        return topology_tester(topology, stages={"clicks": stage}, bolts=bolts), archive

    return start


def test_a_bolt_that_nobody_serves_makes_no_replays(started):
    tester, archive = started()
    tester.kill("count", restart_after_s=STOPPED_S)
    sent = [tester.send("clicks", str(number)) for number in range(RECORDS)]
    tester.run_until_done()
    assert tester.now_s > STOPPED_S
    assert tester.replays("clicks") == {}
    assert len(archive.values) == RECORDS
    assert len(tester.acked("clicks")) == len(sent)


def test_a_bolt_whose_worker_hangs_makes_no_replays(started):
    class StandsStill(Executed):
        def execute(self, tup, emit):
            if tup.value == b"7" and world.monotonic_s() < until_s:
                world.sleep(STOPPED_S)
            super().execute(tup, emit)

    until_s = world.monotonic_s() + STOPPED_S
    tester, archive = started(StandsStill)
    for number in range(RECORDS):
        tester.send("clicks", str(number))
    tester.run_until_done()
    assert tester.now_s > STOPPED_S
    assert tester.replays("clicks") == {}
    assert len(archive.values) == RECORDS


def test_a_tuple_that_a_moving_bolt_holds_times_out(started):
    tester, _ = started(HoldsFirst)
    for number in range(RECORDS):
        tester.send("clicks", str(number))
    tester.run_until_done()
    assert len(tester.replays("clicks")) == 1


def test_what_is_lost_while_a_bolt_stands_still_is_replayed(started):
    tester, _ = started()
    tester.kill("count", restart_after_s=STOPPED_S)
    tester.lose("ack")  # of the other bolt
    for number in range(RECORDS):
        tester.send("clicks", str(number))
    tester.run_until_done()
    assert 1 <= len(tester.replays("clicks")) < RECORDS
    assert set(tester.acked("clicks")) == set(tester.records("clicks"))
