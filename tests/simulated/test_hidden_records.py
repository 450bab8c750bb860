"""What an operator is told of records that a search may not find, or nobody can read.

Driver, workers, ackers and the console are the real ones; broker and time are simulated.
"""

import pytest

from acktree.console.view.cluster import OffsetRange, UnreadableRecord
from acktree.console.view.records.dead_letters import read_newest
from acktree.console.view.records.trace import Trace, find_trace, target_of_record
from acktree.console.view.snapshot import read_with_reports
from acktree.console.view.status import make_status
from acktree.core.kafka.log_reader import Found
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt
from acktree.testing import TopologyTester
from console_queries import look

TOPOLOGY = parse_topology("""
name = "t"
message_timeout_s = 20
[spouts.lines]
topics = ["lines"]
emits = ["words"]
max_attempts = 1
[bolts.check]
reads = ["words"]
""")
HOUR_MS = 3_600_000


class FailsBad(BasicBolt):
    def execute(self, tup, emit):
        if tup.value == b"bad":
            raise ValueError("bad")


@pytest.fixture
def tester():
    stages = {"lines": lambda row: [row.value]}
    with TopologyTester(TOPOLOGY, stages=stages, bolts={"check": FailsBad}, partitions=1) as made:
        yield made


def trace(tester: TopologyTester, offset: int, **more) -> Trace:
    def ask(cluster):
        return find_trace(cluster, target_of_record(cluster.topology, "lines", 0, offset), **more)

    return look(tester, ask)


def status(tester: TopologyTester):
    return look(tester, lambda cluster: make_status(*read_with_reports(cluster)))


def tuples_of(found: Trace) -> list[int]:
    return [tup.at.offset for emission in found.emissions for tup in emission.tuples]


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, 365 * 24 * HOUR_MS], ids=["an hour", "a year"])
@pytest.mark.parametrize("value", ["good", "bad"])
def test_a_tuple_with_a_time_ahead_hides_no_later_one_from_a_trace(tester, ahead_ms, value):
    tester.send("lines", "one")
    tester.run_until_done()
    ahead = tester.cluster.log("words", 0).append(None, b"ahead")
    ahead.timestamp_ms += ahead_ms
    line = tester.send("lines", value)
    tester.run_until_done()
    tester.run_for(60.0)
    assert tuples_of(trace(tester, line.offset)) == [ahead.offset + 1]


def test_a_trace_of_a_whole_tree_does_not_read_what_came_later(tester):
    line = tester.send("lines", "one")
    tester.run_until_done()
    tester.run_for(60.0)
    before = trace(tester, line.offset)
    log = tester.cluster.log("words", 0)
    for _ in range(500):
        log.append(None, b"later")
    tester.run_for(60.0)
    assert trace(tester, line.offset).searched_records <= before.searched_records + 5


def test_a_tuple_with_an_old_time_is_found_if_its_tree_says_that_it_is_missing(tester):
    line = tester.send("lines", "one")
    tester.run_until_done()
    tester.cluster.log("words", 0).records[0].timestamp_ms -= HOUR_MS
    assert tuples_of(trace(tester, line.offset)) == [0]


def test_a_damaged_tuple_is_left_out_of_a_trace_which_says_so(tester):
    lines = []
    for _ in range(10):
        lines.append(tester.send("lines", "one"))
        tester.run_until_done()
    log, (first, *_, last) = tester.cluster.log("words", 0), tester.records("words")
    for offset in range(3, 8):
        log.damage(offset)
    note = "offsets 3 to 7 of words/0 are damaged in the log and are not shown"
    found = [trace(tester, line.offset) for line in lines]
    assert [tuples_of(each) for each in (found[0], found[-1])] == [[first.offset], [last.offset]]
    hidden = [each for each in found if not tuples_of(each)]
    assert hidden
    assert all(note in each.notes for each in hidden)


def test_a_damaged_source_record_is_named_in_its_trace(tester):
    line = tester.send("lines", "one")
    tester.run_until_done()
    tester.cluster.log("lines", 0).damage(line.offset)
    found = trace(tester, line.offset, payloads=True)
    assert "cannot read lines/0/0: it is damaged in the log" in found.notes
    assert "damaged in the log" in found.payload.missing


def test_damaged_dead_letters_hide_no_other_ones(tester):
    for _ in range(4):
        tester.send("lines", "bad")
        tester.run_until_done()
    log, names = tester.cluster.log("t.dead-letter", 0), [each.name for each in tester.dead_letters()]
    first = int(names[1].partition("/")[2])
    log.damage(first)
    found = look(tester, lambda cluster: read_newest(cluster, 100))
    assert sorted(each.name for each in found.dead_letters) == sorted(set(names) - {names[1]})
    (sentence,) = found.unread
    assert "of t.dead-letter/0 are damaged in the log and are not shown" in sentence
    with pytest.raises(UnreadableRecord, match="it is damaged in the log"):
        look(tester, lambda cluster: cluster.record("t.dead-letter", 0, first))


def test_damaged_reports_hide_no_later_ones(tester):
    tester.send("lines", "one")
    tester.run_for(60.0)
    log = tester.cluster.log("t.stats", 0)
    for offset in range(log.end_offset - 40, log.end_offset - 20):
        log.damage(offset)
    assert {process.role for process in status(tester).processes} == {"acker", "bolt", "spout"}


def test_a_log_that_ends_before_what_is_asked_for_ends_a_scan_which_says_so(tester):
    for _ in range(3):
        tester.send("lines", "one")

    def scan(cluster):
        return [
            (each.found, each.start, each.end) for each in cluster.scan({("lines", 0): OffsetRange(1, 9)})
        ]

    *read, last = look(tester, scan)
    assert {found for found, *_ in read} == {Found.READ}
    assert (read[0][1], read[-1][2]) == (1, 3)
    assert last == (Found.FELL, 3, 9)
