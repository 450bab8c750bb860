"""What each reader of a log does about each thing that may stand in it: the table of docs/guarantees.md."""

import logging
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from acktree.producers import BasicBolt
from acktree.testing import TopologyTester
from acktree.testing.kafka.broker.log import PartitionLog
from simulated.test_stage_logs import LOSSY, copying, send
from simulated.test_stages import running

TEXT = LOSSY.replace("message_timeout_s = 10", "message_timeout_s = 10\ncontrol_retention_s = 300")
LOGS = {
    "stage": "lines",
    "worker": "words",
    "acker": "t.ack",
    "results": "t.spout-0",
    "registry": "t.topology",
}
AWAY = {"stage": "split", "worker": "count", "acker": "acker", "results": "split", "registry": "split"}
"""Who is away while something happens to the log, and meets it when it is back."""
AWAY_S = 15.0


class RemembersExecuted(BasicBolt):
    """Remembers what was executed."""

    values: ClassVar[list[bytes]] = []

    def execute(self, tup: Any, emit: Any) -> None:
        RemembersExecuted.values.append(tup.value)


def damaged(_t: TopologyTester, log: PartitionLog, _read_to: int) -> None:
    log.damage([record.offset for record in log.records if not record.is_control][-1])


def removed(_t: TopologyTester, log: PartitionLog, _read_to: int) -> None:
    log.delete_before(log.end_offset)


def fallen(_t: TopologyTester, log: PartitionLog, read_to: int) -> None:
    log.truncate(max(0, read_to - 2))


def foreign(_t: TopologyTester, log: PartitionLog, _read_to: int) -> None:
    log.append(b"key", b"\xffnot ours", ())


def without_leader(t: TopologyTester, log: PartitionLog, _read_to: int) -> None:
    t.cluster.leaderless.add((log.topic.name, log.number))
    t.kernel.call_after(3 * AWAY_S, t.cluster.leaderless.clear)


def held_back(t: TopologyTester, log: PartitionLog, _read_to: int) -> None:
    """A stranger's transaction stays open for a minute, and is aborted by its timeout."""
    coordinator = t.cluster.transactions
    identity = coordinator.init("stranger", 60_000)
    assert identity is not None
    entry = coordinator.begin("stranger", *identity)
    assert entry is not None
    entry.partitions[log] = None
    log.append(b"key", b"never committed", (), None, entry.transaction, "stranger")


Happens = Callable[[TopologyTester, PartitionLog, int], None]

SAID: dict[tuple[str, Happens], str] = {
    ("stage", damaged): "invalid_record",
    ("stage", removed): "records_lost",
    ("stage", fallen): "log_end_fell",
    ("stage", foreign): "",
    ("stage", without_leader): "no_leader",
    ("stage", held_back): "",
    ("worker", damaged): "invalid_record",
    ("worker", removed): "records_lost",
    ("worker", fallen): "log_end_fell",
    ("worker", foreign): "",
    ("worker", without_leader): "",
    ("worker", held_back): "",
    ("acker", damaged): "invalid_record",
    ("acker", removed): "records_lost",
    ("acker", fallen): "log_end_fell",
    ("acker", foreign): "invalid_record",
    ("acker", without_leader): "",
    ("acker", held_back): "",
    ("results", damaged): "results_lost",
    ("results", removed): "results_lost",
    ("results", fallen): "results_lost",
    ("results", foreign): "",
    ("results", without_leader): "",
    ("results", held_back): "",
    ("registry", foreign): "",
    ("registry", without_leader): "",
    ("registry", held_back): "",
}
"""The action of the log line; what passes by itself, and a record that is counted, has none."""


@pytest.fixture(autouse=True)
def _nothing_executed() -> None:
    RemembersExecuted.values.clear()


@pytest.mark.parametrize(
    ("reader", "happens", "action"),
    [(*case, action) for case, action in SAID.items()],
    ids=[f"{reader}-{happens.__name__}" for reader, happens in SAID],
)
def test_what_happens_to_a_log_is_said_and_stops_nothing_behind_it(
    reader: str, happens: Happens, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(copying(), RemembersExecuted, text=TEXT, partitions=1, ackers=1) as t:
        log = t.cluster.log(LOGS[reader], 0)
        send(t, ("0", "1", "2"))
        t.run_until_done()
        t.run_for(3)
        read_to = log.end_offset
        if reader == "results":  # they come of what was emitted before
            t.pause("count", 2)
            send(t, ("3", "4", "5"))
            t.run_until(lambda: len(t.values("words")) == 6, what="the emission")
        t.kill(AWAY[reader], restart_after_s=AWAY_S)
        if reader != "results":
            send(t, ("3", "4", "5"))
        t.run_for(AWAY_S - 1)
        happens(t, log, read_to)
        t.run_for(AWAY_S)
        send(t, ("6", "7", "8"))
        t.run_until_done()
        assert {b"6", b"7", b"8"} <= set(RemembersExecuted.values)
        t.run_for(60)
        assert t.committed("lines", 0) == t.cluster.log("lines", 0).stable_offset
    said = {_action_of(record) for record in caplog.records}
    assert said & {"invalid_record", "records_lost", "log_end_fell", "results_lost", "no_leader"} == {
        *filter(None, [action])
    }
    if action:
        place = LOGS[reader]
        assert any(place in each.getMessage() for each in caplog.records if _action_of(each) == action)


def _action_of(record: logging.LogRecord) -> str:
    """Return the action of a log line; an acker's has it in its text."""
    text = record.getMessage()
    in_text = text.removeprefix("action=").split(" ")[0] if text.startswith("action=") else ""
    return str(getattr(record, "action", in_text))
