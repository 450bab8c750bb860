"""Fails that come before the init of their root: what is kept of them, and how much."""

import numpy as np

from acker.tester import entries
from acktree.acker.reasons import MAX_STACK, MAX_STACKS, UNKNOWN_REASON, Reason, Reasons
from acktree.acker.results import encode_finished
from acktree.acker.table import Table
from acktree.schemas.batch_codec import decode_ack_batch, decode_init_batch
from acktree.schemas.codec import decode_result, encode_ack, encode_ack_init, encode_fail_with_tuple
from acktree.schemas.control_records import BACK_OFF, NEVER, Ack, AckInit, Fail, FailedTuple

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


def test_what_was_taken_makes_room_again():
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


def test_the_failed_tuple_goes_from_the_first_fail_into_the_first_result():
    failed = FailedTuple("words", 3, 7, "in execute\n")
    fails = [Fail(4, "no", NEVER, failed)]
    sent = (encode_fail_with_tuple(Ack("b", 1, fails=fails)), encode_ack(Ack("b", 1, fails=fails)))
    for early in (False, True):
        with_tuple, with_retry, plain = results_of(*sent, early=early)
        assert [(each.retry_after_ms, each.failed_tuple) for each in with_tuple] == [(NEVER, failed)]
        assert [(each.retry_after_ms, each.failed_tuple) for each in with_retry] == [(NEVER, None)]
        assert [(each.root, each.reason, each.retry_after_ms) for each in plain] == [(4, "no", BACK_OFF)]


def test_a_plain_fail_of_an_older_worker_makes_the_result_of_older_ackers():
    plain = encode_ack(Ack("b", 1, fails=[Fail(4, "no")]))
    for early in (False, True):
        ((failure,),) = results_of(plain, early=early)
        assert failure.failed_tuple is None
