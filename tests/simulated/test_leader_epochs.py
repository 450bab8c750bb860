"""A log that was written again shows by its leader epochs alone, to readers and to those that start later."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from acktree.producers.spouts.driver.sources.log_bounds import DataLoss
from acktree.testing import TopologyTester
from simulated.test_spark_stub import TOPOLOGY
from simulated.test_spark_stub import with_words as in_spark
from simulated.test_stage_logs import LOSSY, TEXT, copying, log_of, send
from simulated.test_stages import running as in_python

SPOUTS = {"python": "split", "spark": "lines"}


@contextmanager
def spout(where: str, *, may_lose: bool) -> Iterator[TopologyTester]:
    """Run a spout that writes a word per line, in one partition; a line is done when ``words`` is read."""
    if where == "python":
        with in_python(copying(), partitions=1, text=LOSSY if may_lose else TEXT, restart_on=()) as t:
            yield t
    else:
        options = {"lines": {"failOnDataLoss": str(not may_lose).lower()}}
        with in_spark(TOPOLOGY, partitions=1, options=options, restart_on=()) as t:
            yield t


def lines(kind: str, first: int, end: int) -> set[str]:
    return {f"{kind}{number}" for number in range(first, end)}


def do_twenty(t: TopologyTester) -> None:
    send(t, (f"old{number}" for number in range(20)))
    t.run_until_done()


def write_again(t: TopologyTester, first: int, end: int) -> None:
    """Lose the log from an offset on, and write it again up to ``end`` under a new leader."""
    log_of(t).truncate(first, by_new_leader=True)
    send(t, (f"new{number}" for number in range(first, end)))


def elect(t: TopologyTester) -> None:
    """Let another leader go on that lacks nothing."""
    log_of(t).truncate(log_of(t).end_offset, by_new_leader=True)


@pytest.mark.parametrize("where", SPOUTS)
def test_what_stands_there_now_is_executed_by_who_starts_after_the_log_was_written_again(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    with spout(where, may_lose=True) as t:
        do_twenty(t)
        assert t.committed("lines", 0) == 20
        t.kill(SPOUTS[where], restart_after_s=5.0)
        write_again(t, 5, 40)
        t.run_for(8.0)
        t.run_until_done()
        assert lines("new", 5, 40) <= set(t.values("words"))
        assert t.committed("lines", 0) == 40
    assert "lines/0 ended at offset 5, below 20" in caplog.text


@pytest.mark.parametrize("where", SPOUTS)
def test_each_start_refuses_a_log_that_was_written_again_until_somebody_decides(where: str) -> None:
    with spout(where, may_lose=False) as t:
        do_twenty(t)
        t.kill(SPOUTS[where], restart_after_s=5.0)
        write_again(t, 5, 40)
        for _ in range(3):
            with pytest.raises(DataLoss, match="ended at offset 5, but records up to 19 had been read"):
                t.run_for(60)
        assert t.committed("lines", 0) == 20
        assert not lines("new", 5, 40) & set(t.values("words"))
        t.rewind("lines", 0, 5)
        t.run_for(60)
        t.run_until_done()
        assert lines("new", 5, 40) <= set(t.values("words"))


@pytest.mark.parametrize("may_lose", [False, True])
@pytest.mark.parametrize("where", SPOUTS)
def test_a_log_that_is_written_again_is_noticed_by_who_runs(
    where: str, may_lose: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with spout(where, may_lose=may_lose) as t:
        do_twenty(t)
        write_again(t, 5, 40)
        if not may_lose:
            for _ in range(2):
                with pytest.raises(DataLoss, match="ended at offset 5, but records up to 19"):
                    t.run_for(60)
            return
        t.run_until_done()
        assert lines("new", 5, 40) <= set(t.values("words"))
    assert "lines/0 ended at offset 5, below 20" in caplog.text


@pytest.mark.parametrize("where", SPOUTS)
def test_leaders_that_lack_nothing_are_no_loss(where: str, caplog: pytest.LogCaptureFixture) -> None:
    with spout(where, may_lose=False) as t:
        for number in range(4):
            send(t, (f"{number}-{at}" for at in range(10)))
            t.run_until_done()
            elect(t)
            if number % 2:
                t.kill(SPOUTS[where], restart_after_s=2.0)
            t.run_for(15.0)
            elect(t)
        t.run_until_done()
        assert len(t.values("words")) == 40
        assert t.committed("lines", 0) == 40
    assert "ended at offset" not in caplog.text


@pytest.mark.parametrize("where", SPOUTS)
def test_records_of_a_new_leader_behind_what_was_read_are_no_loss(where: str) -> None:
    """It lacks only what nobody has read: a stage may run behind the end of the log."""
    with spout(where, may_lose=False) as t:
        do_twenty(t)
        t.kill(SPOUTS[where], restart_after_s=5.0)
        send(t, (f"lost{number}" for number in range(20, 30)))
        write_again(t, 20, 45)
        t.run_for(8.0)
        t.run_until_done()
        assert set(t.values("words")) == lines("old", 0, 20) | lines("new", 20, 45)


@pytest.mark.parametrize("where", SPOUTS)
def test_a_log_without_a_leader_at_a_start_is_looked_at_once_it_has_one(where: str) -> None:
    with spout(where, may_lose=True) as t:
        do_twenty(t)
        t.kill(SPOUTS[where], restart_after_s=1.0)
        t.cluster.leaderless.add(("lines", 0))
        t.run_for(30.0)
        write_again(t, 5, 40)
        t.cluster.leaderless.clear()
        t.run_for(10.0)
        t.run_until_done()
        assert lines("new", 5, 40) <= set(t.values("words"))
