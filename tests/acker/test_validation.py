"""What may be folded and what is invalid, and how results are split into records; no Kafka."""

import logging
import time
import tracemalloc

import numpy as np
import pytest

from acker.tester import OFF, SEED, entries
from acktree.acker.folding.cut import Positions
from acktree.acker.folding.invalid import KEPT, LINES_PER_SECOND, InvalidRecord, InvalidRecords
from acktree.acker.folding.partition import Partition
from acktree.acker.folding.reasons import MAX_TEXT, Reason
from acktree.acker.folding.table import FailedRoot, FinishedTrees, TimedOut
from acktree.acker.folding.validation import Fault, RecordValidator
from acktree.acker.kafka.results import MAX_FAILURES, MAX_IDS, encode_finished, encode_timed_out
from acktree.core.topology.registry import History, Published
from acktree.wire.avro import zigzag
from acktree.wire.codec import ACK_INIT_FRAME, decode_result, encode_ack, encode_ack_init
from acktree.wire.control_records import BACK_OFF, ID, NEVER, Ack, AckInit, Cause, Fail, Failure


def published(version, ackers, tasks=(0,)):
    return Published(name="t", ackers=ackers, version=version, spout_tasks={"s": tasks}, slots=())


@pytest.fixture
def history():
    return History("t", {1: published(1, 2), 2: published(2, 0), 3: published(3, 3, (1,))})


@pytest.fixture
def asked():
    return []


@pytest.fixture
def invalid():
    return InvalidRecords()


@pytest.fixture
def validator(history, asked, invalid):
    return RecordValidator(history, lambda: asked.append(1), invalid)


def inits(*pairs, task=0, version=1):
    return encode_ack_init(AckInit(task, version, entries(pairs)))


def acks(*pairs, fails=(), resets=(), version=1):
    return encode_ack(Ack("b", version, entries(pairs), tuple(fails), np.array(resets, ID)))


def faults(batch):
    return [Fault(fault) for fault in batch.faults.tolist()]


def test_valid_records_pass(validator, invalid):
    values = [inits((2, 1)), inits((3, 1), task=1, version=3), inits(), inits((2**64 - 2, 0))]
    assert set(faults(validator.inits("i", 0, values, range(4), 0))) == {Fault.WHOLE}
    assert invalid.total == 0


def test_each_fault_of_an_init_has_its_name_and_reason(validator, invalid):
    values = [
        b"",
        inits((2, 1), version=2),
        inits((2, 1), version=-5),
        inits((2, 1), task=-1),
        inits((2, 1), (0, 1)),
        inits((2, 1), (3, 1)),
        inits((2**64 - 1, 1)),
    ]
    assert faults(validator.inits("i", 0, values, range(10, 17), 0)) == [
        Fault.MALFORMED,
        Fault.UNKNOWN_VERSION,
        Fault.UNKNOWN_VERSION,
        Fault.UNKNOWN_TASK,
        Fault.ROOT_ZERO,
        Fault.WRONG_PARTITION,
        Fault.WRONG_PARTITION,
    ]
    assert [each[:3] for each in invalid.latest] == [("i", 0, offset) for offset in range(10, 17)]
    assert len({each.reason for each in invalid.latest}) == 6


def test_acks_fails_and_resets_are_all_checked(validator):
    values = [
        acks((2, 1)),
        acks((3, 1)),
        acks(fails=[Fail(3, "")]),
        acks(fails=[Fail(0, "")]),
        acks(resets=[2, 3]),
        acks(resets=[0]),
    ]
    whole, wrong, zero = Fault.WHOLE, Fault.WRONG_PARTITION, Fault.ROOT_ZERO
    assert faults(validator.acks("a", 0, values, range(6), 0)) == [whole, wrong, wrong, zero, wrong, zero]


def test_a_rejected_record_has_no_effect_at_all(validator):
    partition = Partition(Positions(0, 0), OFF, SEED)
    times = np.zeros(3, np.int64)
    batch = validator.inits("i", 0, [inits((2, 1)), inits((4, 1), (5, 1)), inits((6, 1))], range(3), 0)
    partition.fold_inits(batch, times, 3, 0)
    assert [partition.table.entry(root) is not None for root in (2, 4, 5, 6)] == [True, False, False, True]
    bad = acks((2, 1), fails=[Fail(4, "")], resets=[8, 9])
    finished = partition.fold_acks(
        validator.acks("a", 0, [acks(), bad, acks((6, 1))], range(3), 0), times, 3, 0
    )
    assert finished.acked.tolist() == [6]
    assert partition.table.orphans == 0
    assert partition.table.folded == 3


def test_an_unknown_version_is_looked_up_once_per_batch_and_impossible_ones_never(validator, asked):
    validator.inits(
        "i", 0, [inits((2, 1), version=version) for version in (1, 2, -1, 0, 70_000)], range(5), 0
    )
    assert asked == []
    validator.inits("i", 0, [inits((2, 1), version=version) for version in (7, 8, 9)], range(3), 0)
    assert asked == [1]


def test_a_version_found_by_the_lookup_is_accepted(history):
    validator = RecordValidator(
        history, lambda: history.versions.update({4: published(4, 1, (9,))}), InvalidRecords()
    )
    assert faults(validator.inits("i", 0, [inits((3, 1), task=9, version=4)], [0], 0)) == [Fault.WHOLE]


def test_rejected_records_are_bounded_in_memory_and_in_log_lines(caplog):
    invalid = InvalidRecords()
    with caplog.at_level(logging.WARNING, "acktree.acker"):
        for offset in range(5000):
            invalid.add(InvalidRecord("t", 0, offset, "because"), wall_ms=500)
    assert (invalid.total, len(invalid.latest), invalid.latest[-1].offset) == (5000, KEPT, 4999)
    assert len(caplog.records) == LINES_PER_SECOND + 1
    invalid.add(InvalidRecord("t", 0, 5000, "because"), wall_ms=1500)
    assert len(caplog.records) == LINES_PER_SECOND + 2


def test_each_finished_root_is_reported_once_to_its_spout_task():
    acked = np.arange(1, 7, dtype=np.uint64)
    finished = FinishedTrees(acked, np.array([0, 1, 0, 1, 0, 2]), (FailedRoot(9, 1, Reason("b", "why")),))
    results = [(task, decode_result(value)) for task, value in encode_finished(5, finished)]
    assert [(task, result.acked.tolist()) for task, result in results[:3]] == [
        (0, [1, 3, 5]),
        (1, [2, 4]),
        (2, [6]),
    ]
    assert [(task, list(result.failed)) for task, result in results[3:]] == [
        (1, [Failure(9, Cause.FAILED, "b", "why")])
    ]
    assert {result.acker for _, result in results} == {5}


def test_a_result_says_when_each_of_its_roots_is_emitted_again():
    failed = (FailedRoot(9, 1, Reason("b", "poison", NEVER)), FailedRoot(8, 1, Reason("b", "plain")))
    nothing = FinishedTrees(np.empty(0, np.uint64), np.empty(0, np.int64), failed)
    ((task, value),) = encode_finished(5, nothing)
    result = decode_result(value)
    assert (task, result.acker) == (1, 5)
    assert [(each.root, each.retry_after_ms) for each in result.failed] == [(9, NEVER), (8, BACK_OFF)]


def test_without_finished_roots_no_result_record_is_made():
    nothing = FinishedTrees(np.empty(0, np.uint64), np.empty(0, np.int64))
    assert list(encode_finished(0, nothing)) == []
    assert list(encode_timed_out(0, TimedOut(nothing.acked, nothing.acked_tasks))) == []


def test_many_finished_roots_are_split_into_records_that_a_broker_accepts():
    count = 2 * MAX_IDS + 1
    roots, tasks = np.arange(1, count + 1, dtype=np.uint64), np.zeros(count, np.int64)
    failed = tuple(
        FailedRoot(n, 0, Reason("ü" * MAX_TEXT, "日" * MAX_TEXT)) for n in range(1, MAX_FAILURES + 2)
    )
    results = [value for _, value in encode_finished(0, FinishedTrees(roots, tasks, failed))]
    timed_out = [value for _, value in encode_timed_out(0, TimedOut(roots, tasks))]
    assert max(map(len, results + timed_out)) < 1_000_000
    assert sum(len(decode_result(value).acked) for value in results) == count
    assert [len(decode_result(value).failed) for value in results] == [0, 0, 0, MAX_FAILURES, 1]
    assert {f.root for value in timed_out for f in decode_result(value).failed} == set(roots.tolist())


FLOODS = {
    "unknown fingerprint": lambda: b"\xc3\x01" + bytes(8) + inits((2, 1))[10:],
    "truncated": lambda: inits(*[(2, 1)] * 500)[:-9],
    "count that lies": lambda: ACK_INIT_FRAME + zigzag(0) + zigzag(1) + zigzag(2**40) + bytes(8000) + b"\0",
    "bytes after the record": lambda: inits((2, 1)) + bytes(100_000),
    "no record at all": lambda: bytes(100_000),
    "root zero": lambda: inits(*[(2, 1)] * 500, (0, 1)),
    "wrong partition": lambda: inits(*[(2, 1)] * 500, (3, 1)),
    "no such task": lambda: inits((2, 1), task=9),
    "no such version": lambda: inits((2, 1), version=44),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_bad_records_keeps_only_the_latest_ones_in_memory(validator, asked, invalid, flood):
    batch, batches = [flood()] * 2000, 10
    validator.inits("i", 0, batch, range(2000), 0)
    tracemalloc.start()
    try:
        for number in range(1, batches):
            assert (
                0 not in validator.inits("i", 0, batch, range(2000 * number, 2000 * (number + 1)), 0).faults
            )
        kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1_000 * KEPT
    assert peak_bytes < 2 * sum(map(len, batch)) + 1_000 * len(batch)
    assert max(len(each.reason) for each in invalid.latest) < 200
    assert (invalid.total, len(invalid.latest)) == (2000 * batches, KEPT)
    assert len(asked) in (0, batches)


FAILS = [*[Fail(2, "r")] * 2000, Fail(4, "r")]
BAD_ACKS = {
    "fails that end too early": lambda: acks(fails=FAILS)[:-20],
    "a last reason that is no text": lambda: acks(fails=FAILS)[:-3] + b"\xff\0\0",
    "fails of another partition": lambda: acks(fails=[*FAILS[:-1], Fail(3, "r")]),
}
GOOD = {
    "inits": lambda size: inits(*[(2 * root, 1) for root in range(1, max(2, size // 16))]),
    "acks": lambda _: acks(fails=FAILS),
}
MOST_TIMES_A_GOOD_RECORD = 40


def cpu_s(validator, kind, values):
    """Return the least CPU time, of several tries, in which a batch is taken in and folded."""
    tries = []
    for second in range(5):
        partition, times = Partition(Positions(0, 0), OFF, SEED), np.zeros(len(values), np.int64)
        begin_s = time.thread_time()
        batch = getattr(validator, kind)("t", 0, values, range(len(values)), 1000 * second)
        getattr(partition, f"fold_{kind}")(batch, times, len(values), 0)
        tries.append(time.thread_time() - begin_s)
    return min(tries)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [("inits", flood) for flood in FLOODS.values()] + [("acks", flood) for flood in BAD_ACKS.values()],
    ids=[*FLOODS, *BAD_ACKS],
)
def test_a_bad_record_costs_no_more_cpu_than_a_good_one_of_its_kind_and_size(validator, invalid, kind, bad):
    """So a flood of bad records is no worse than one of good records, by those who may write them."""
    value, count = bad(), 50
    good_s = cpu_s(validator, kind, [GOOD[kind](len(value))] * count)
    assert invalid.total == 0
    bad_s = cpu_s(validator, kind, [value] * count)
    assert invalid.total == 5 * count
    assert bad_s < MOST_TIMES_A_GOOD_RECORD * good_s
