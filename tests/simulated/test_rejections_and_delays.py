"""A bolt says when or never, and the whole topology does it: Spark's spout, worker, acker, dead letters."""

import pytest

from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt, Reject, RetryLater
from acktree.testing import TopologyTester
from acktree.wire.control_records import Cause

TOPOLOGY = parse_topology("""
name = "t"
ackers = 2
[spouts.lines]
topics = ["lines"]
emits = ["words"]
retry_initial_s = 1000
retry_max_s = 1000
[bolts.keep]
reads = ["words"]
""")


def same(row):
    """Pass a row on."""
    return [row.value]


class KeepsWhatCame(BasicBolt):
    """Rejects ``poison``, and asks to wait at the first ``busy``."""

    def __init__(self) -> None:
        self.executed: list[bytes] = []

    def execute(self, tup, emit):
        self.executed.append(tup.value)
        if tup.value == b"poison":
            raise Reject("no number")
        if tup.value == b"busy" and self.executed.count(b"busy") == 1:
            raise RetryLater(5, "closed")


def test_a_rejected_record_becomes_a_dead_letter_and_a_delayed_one_is_replayed():
    keep = KeepsWhatCame()
    with TopologyTester(TOPOLOGY, bolts={"keep": lambda: keep}, stages={"lines": same}) as topology:
        for value in ("a", "poison", "busy"):
            topology.send("lines", value)
        topology.run_until_done()
        failures = {each.record.value: each for each in topology.failures("lines")}
        (dead_letter,) = topology.dead_letters()
    assert sorted(keep.executed) == [b"a", b"busy", b"busy", b"poison"]
    assert (failures[b"poison"].retry, failures[b"busy"].retry_after_s) == (False, 5.0)
    assert failures[b"poison"].cause is Cause.FAILED
    assert dead_letter.cause == "REJECTED"


def refusing(row):
    """Reject ``poison``; ask to wait with the first ``busy``."""
    if row.value == b"poison":
        yield {"value": "", "fail": "no number", "retry": False}
    elif row.value == b"busy" and not seen:
        seen.append(row.value)
        yield {"value": "", "fail": "closed", "retry_after_s": 5}
    yield row.value


seen: list[bytes] = []


def test_a_row_of_a_stage_is_rejected_or_delayed_by_its_columns():
    seen.clear()
    keep = KeepsWhatCame()
    with TopologyTester(TOPOLOGY, bolts={"keep": lambda: keep}, stages={"lines": refusing}) as topology:
        for value in ("a", "poison", "busy"):
            topology.send("lines", value)
        topology.run_until_done()
        failures = {each.record.value: each for each in topology.failures("lines")}
        (dead_letter,) = topology.dead_letters()
    assert (failures[b"poison"].retry, failures[b"busy"].retry_after_s) == (False, 5.0)
    assert (dead_letter.cause, dead_letter.reason) == ("REJECTED", "no number")


def test_a_column_of_another_type_is_refused():
    def wrong(row):
        return [{"value": row.value, "fail": "bad", "retry": "false"}]

    with TopologyTester(TOPOLOGY, bolts={"keep": KeepsWhatCame}, stages={"lines": wrong}) as topology:
        topology.send("lines", "a")
        with pytest.raises(Exception, match="a row with a retry that is not bool"):
            topology.run_until_done()
