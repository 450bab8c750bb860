"""What an operator is told of records that a search may not find, or nobody can read.

Driver, workers, ackers and the console are the real ones; broker and time are simulated.
"""

import pytest

from acktree.console.page.serving.status_metrics import StatusCollector
from acktree.console.page.serving.watcher import PageState
from acktree.console.view.cluster import OffsetRange, UnreadableRecord
from acktree.console.view.open_transactions import OpenTransactions
from acktree.console.view.records.dead_letters import read_newest
from acktree.console.view.records.trace import Trace, find_trace, target_of_record
from acktree.console.view.snapshot import read_snapshot, read_with_reports
from acktree.console.view.status import make_status
from acktree.core.kafka.log_reader import Found
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt
from acktree.testing import TopologyTester
from acktree.testing.kafka.broker.log import Outcome, Transaction
from console_queries import look

TEXT = """
name = "t"
message_timeout_s = 20
[spouts.lines]
topics = ["lines"]
emits = ["words"]
max_attempts = 1
[bolts.check]
reads = ["words"]
"""
TOPOLOGY = parse_topology(TEXT)
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


def open_transaction(tester: TopologyTester, topic: str = "lines") -> Transaction:
    stranger = Transaction("stranger", 99, 0)
    tester.cluster.log(topic, 0).append(None, b"hidden", transaction=stranger)
    return stranger


def end(tester: TopologyTester, transaction: Transaction, topic: str = "lines") -> None:
    transaction.outcome = Outcome.ABORTED
    tester.cluster.log(topic, 0).append_marker(transaction)


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


def test_a_trace_says_that_an_open_transaction_hides_the_record(tester):
    tester.send("lines", "one")
    tester.run_until_done()
    hidden = open_transaction(tester)
    line = tester.send("lines", "two")
    tester.run_for(40.0)
    began_s = tester.now_s
    found = trace(tester, line.offset)
    assert tester.now_s - began_s < 10.0
    assert found.state == "not emitted"
    (note,) = [note for note in found.notes if "open transaction has hidden" in note]
    assert "what lines/0 holds from offset 1 on for 4" in note
    assert "describe-producers --topic lines --partition 0" in note
    end(tester, hidden)
    tester.run_until_done()
    assert not [note for note in trace(tester, line.offset).notes if "transaction" in note]


def test_an_open_transaction_is_named_while_it_holds_back_a_partition(tester):
    tester.send("lines", "one")
    tester.run_until_done()
    hidden = open_transaction(tester)
    tester.run_for(10.0)
    young = status(tester)
    assert not [text for text in young.notes if "transaction" in text]
    tester.run_for(30.0)
    old = status(tester)
    assert [text.partition(" holds")[0] for text in old.notes] == [
        "an open transaction has hidden what lines/0"
    ]
    assert old.stuck == ()
    tester.run_for(30.0)
    stuck = status(tester)
    assert [(each.kind, each.where) for each in stuck.stuck] == [("open-transaction", "lines/0")]
    metrics = StatusCollector({"t": lambda: PageState(stuck, None, None, 0.0)}).collect()
    samples = [sample for metric in metrics for sample in metric.samples]
    kinds = {
        sample.labels["kind"]: sample.value for sample in samples if sample.name == "acktree_topology_stuck"
    }
    assert kinds["open-transaction"] == 1
    end(tester, hidden)
    tester.run_until_done()
    assert status(tester).stuck == ()


def test_short_transactions_with_old_times_are_never_named(tester):
    """A worker that processes exactly once has one open nearly always, and may pass on any time."""
    log = tester.cluster.log("words", 0)
    looks = OpenTransactions()

    def seen(cluster):
        return read_snapshot(cluster, transactions=looks).transactions

    for _ in range(5):
        own = Transaction("own", 98, 0)
        log.append(None, b"old", transaction=own).timestamp_ms -= HOUR_MS
        assert list(look(tester, seen)) == []
        end(tester, own, "words")
        tester.run_for(1.0)


class EmitsTheLine(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value)


def trace_of_a_lost_line(engine: str, happens: str) -> Trace:
    """Return the trace of the second of four lines, which is damaged or removed before it is read."""
    runs = {"stages": {"lines": lambda row: [row.value]}, "spouts": {"lines": EmitsTheLine}}
    topology = parse_topology(TEXT.replace("max_attempts = 1", "spark = {fail_on_data_loss = false}"))
    more = {engine: runs[engine], "bolts": {"check": FailsBad}}
    with TopologyTester(topology, partitions=1, **more) as tester:
        tester.send("lines", b"first")
        tester.run_until_done()
        tester.kill("lines", restart_after_s=5)
        for value in (b"lost", b"c", b"d"):
            tester.send("lines", value)
        log = tester.cluster.log("lines", 0)
        log.damage(1) if happens == "damaged" else log.delete_before(2)
        tester.run_until_done()
        tester.run_for(10)
        assert tester.values("words") == ["first", "c", "d"]
        return trace(tester, 1)


@pytest.mark.parametrize("happens", ["damaged", "removed"])
def test_the_trace_of_a_lost_line_says_the_same_of_spark_and_of_a_stage(happens):
    of_spark, of_stage = (trace_of_a_lost_line(engine, happens) for engine in ("stages", "spouts"))
    assert of_spark.state == of_stage.state
    assert of_spark.notes == of_stage.notes
    assert of_spark.emissions == of_stage.emissions == ()
