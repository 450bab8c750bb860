"""A stage one of whose source partitions has no leader: the others go on, at a start as well."""

from typing import Any

import pytest

from acktree.producers import BasicBolt, RetryLater
from acktree.testing import TopologyTester
from simulated.test_stage_logs import copying, send
from simulated.test_stages import counted, running

AWAY = "lines", 0


def lose_leader(t: TopologyTester) -> None:
    t.cluster.leaderless = {AWAY}


def find_leader(t: TopologyTester) -> None:
    t.cluster.leaderless = set()


def test_the_other_partitions_are_read_and_committed(caplog: pytest.LogCaptureFixture) -> None:
    with running(copying()) as t:
        send(t, "ab")
        t.run_until_done()
        lose_leader(t)
        send(t, "cd", partition=1)
        t.run_until(lambda: t.committed("lines", 1) == 2, what="a commit of the other partition")
        t.run_for(60)
        send(t, "ef", partition=1)
        t.run_until(lambda: t.committed("lines", 1) == 4, what="another one")
        find_leader(t)
        send(t, "gh")
        t.run_until_done()
        t.run_for(60)
        assert sorted(t.values("words")) == [*"abcdefgh"]
        assert not t.failures("split")
    assert "lines/0 has no leader" in caplog.text
    assert "lines/0 has a leader again" in caplog.text


@pytest.mark.parametrize("was_read", [True, False])
def test_a_stage_starts_without_a_partition_and_reads_it_later(was_read: bool) -> None:
    with running(copying()) as t:
        send(t, "ab" if was_read else "")
        t.run_until_done()
        t.kill("split", restart_after_s=20.0)
        lose_leader(t)
        send(t, "cd", partition=1)
        t.run_until(lambda: t.committed("lines", 1) == 2, what="a commit of the other partition")
        find_leader(t)
        send(t, "ef")
        t.run_until_done()
        assert sorted(t.values("words")) == sorted([*("ab" if was_read else ""), *"cdef"])
        assert counted(t, "lost") == 0


def test_a_partition_that_never_had_a_leader_begins_where_it_begins_once_it_has_one() -> None:
    with running(copying(), restart_on=()) as t:
        lose_leader(t)
        send(t, "cd", partition=1)
        t.run_until(lambda: t.committed("lines", 1) == 2, what="a commit of the other partition")
        find_leader(t)
        send(t, "ab")
        t.run_until_done()
        assert sorted(t.values("words")) == [*"abcd"]


class LaterFirst(BasicBolt):
    """Asks for each line of partition 0 again, the first time."""

    def prepare(self, context: Any) -> None:
        self.seen: set[bytes] = set()

    def execute(self, tup: Any, emit: Any) -> None:
        if tup.partition == 0 and tup.value not in self.seen:
            self.seen.add(tup.value)
            raise RetryLater(3)
        emit(tup.value)


def test_what_is_due_again_waits_for_a_leader_and_holds_up_nobody() -> None:
    with running(LaterFirst) as t:
        send(t, "ab")
        t.run_for(1)
        lose_leader(t)
        send(t, "cd", partition=1)
        t.run_until(lambda: t.committed("lines", 1) == 2, what="a commit of the other partition")
        t.run_for(60)
        send(t, "ef", partition=1)
        sent_s = t.now_s
        t.run_until(lambda: t.committed("lines", 1) == 4, what="another one")
        assert t.now_s - sent_s < 5
        find_leader(t)
        t.run_until_done()
        assert sorted(t.values("words")) == [*"abcdef"]


class RefusesFirst(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        if tup.partition == 0:
            raise ValueError("refused")
        emit(tup.value)


def test_a_dead_letter_waits_for_a_leader_and_holds_up_nobody() -> None:
    with running(RefusesFirst) as t:
        send(t, "a")
        t.run_until(lambda: counted(t, "replayed") == 2, what="the last attempt but its end")
        lose_leader(t)
        send(t, "cd", partition=1)
        t.run_until(lambda: t.committed("lines", 1) == 2, what="a commit of the other partition")
        t.run_for(60)
        find_leader(t)
        t.run_until_done()
        assert counted(t, "dead_lettered") == 1
