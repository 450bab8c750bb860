"""Fails that come before the init of their root: what is kept of them, and how much."""

import numpy as np

from acker.tester import entries
from acktree.acker.folding.reasons import MAX_STACK, MAX_STACKS, UNKNOWN_REASON, Reason, Reasons
from acktree.acker.folding.table import FailedRoot, FinishedTrees, Table
from acktree.acker.kafka.results import encode_finished
from acktree.wire.batch_codec import decode_ack_batch, decode_init_batch
from acktree.wire.codec import decode_result, encode_ack, encode_ack_init
from acktree.wire.control_records import BACK_OFF, NEVER, Ack, AckInit, Cause, Fail, FailedTuple, Failure

TICKS = np.zeros(3, np.int64)


def reason(stack: str, offset: int = 1) -> Reason:
    return Reason("b", "no", BACK_OFF, FailedTuple("words", 0, offset, stack))


def test_stacks_beyond_their_limit_are_not_kept_but_reasons_and_coordinates_are():
    reasons, fitting = Reasons(), MAX_STACKS // MAX_STACK
    for root in range(fitting + 5):
        reasons.add(root, reason("x" * MAX_STACK, root))
    found = [reasons.pop(root) for root in range(fitting + 5)]
    assert [each.failed_tuple.offset for each in found] == list(range(fitting + 5))
    assert [len(each.stack) for each in found] == [MAX_STACK] * fitting + [0] * 5


def test_reasons_that_were_taken_make_room_again():
    reasons = Reasons()
    for root in range(3 * MAX_STACKS // MAX_STACK):
        reasons.add(root % 7, reason("x" * MAX_STACK))
        assert reasons.pop(root % 7).stack
    assert reasons.pop(1) == UNKNOWN_REASON


def results_of(*values: bytes, early: bool) -> list:
    """Fold an init of root 4 and these records, in one of two orders."""
    table = Table(seed=1)
    init = decode_init_batch([encode_ack_init(AckInit(0, 1, entries([(4, 9)])))])
    acks = decode_ack_batch(list(values))
    folds = [lambda: table.fold_inits(init, TICKS, 1), lambda: table.fold_acks(acks, TICKS, 1)]
    in_order = reversed(folds) if early else folds
    found = [result for fold in in_order for result in encode_finished(0, fold())]
    return [decode_result(value).failed for _, value in found]


def test_the_details_of_a_fail_are_in_the_only_result_of_its_root():
    failed = FailedTuple("words", 3, 7, "in execute\n")
    for fail in (Fail(4, "no", NEVER, failed), Fail(4, "no", 900), Fail(4, "no")):
        for early in (False, True):
            found = results_of(encode_ack(Ack("b", 1, fails=[fail])), early=early)
            assert found == [(Failure(4, Cause.FAILED, "b", *fail[1:]),)]


def test_roots_that_failed_at_several_places_get_one_result_per_stack_trace():
    fails = [
        Fail(root, "no", failed_tuple=FailedTuple("words", 0, root, "ab"[root % 2])) for root in (1, 2, 3)
    ]
    failures = [FailedRoot(fail.root, 0, Reason("b", *fail[1:])) for fail in fails]
    none = np.empty(0, np.uint64), np.empty(0, np.int64)
    values = [value for _, value in encode_finished(0, FinishedTrees(*none, tuple(failures)))]
    assert [[each.root for each in decode_result(value).failed] for value in values] == [[1, 3], [2]]
