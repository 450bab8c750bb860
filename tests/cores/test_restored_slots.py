"""When a record is due that was stored with its slot, where a clock or a delay would have it otherwise."""

import pytest

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.spark.ledger.partitions.partition import PartitionLedger
from acktree.spark.ledger.partitions.retries import FailureOutcome
from acktree.spark.ledger.slot_states import Clock, ledger_of, state_of
from acktree.wire.ids import generation_of

POLICY = RetryPolicy(initial_s=1, max_s=4, max_attempts=1_000, max_after_s=600)
ONE_ATTEMPT = RetryPolicy(initial_s=1, max_s=4, max_attempts=1, max_after_s=600)
NOW_MS = 1_700_000_000_000


def failed(policy: RetryPolicy, after_s: float | None) -> tuple[PartitionLedger, FailureOutcome]:
    ledger = PartitionLedger(0, 0, 1, policy)
    ledger.emit(1, 1, 0.0, 1)
    ((_, outcome),) = ledger.failed(generation_of(1, 0), 0, 0.0, counts=True, after_s=after_s)
    return ledger, outcome


@pytest.mark.parametrize(("after_s", "longest_s"), [(None, 6.0), (20.0, 600.0)])
def test_a_clock_that_was_ahead_keeps_nothing_waiting_for_longer_than_its_policy(after_s, longest_s):
    ledger, _ = failed(POLICY, after_s)
    ahead = Clock(0.0, NOW_MS + 86_400_000)
    restored = ledger_of(state_of(ledger, ahead), POLICY, Clock(0.0, NOW_MS))
    assert restored.retries.attempts[0].due_s <= longest_s
    assert restored.retries.emit_due(longest_s, 2, 9)


def test_a_record_that_was_about_to_be_given_up_is_due_once_more_but_not_before_its_delay():
    ledger, outcome = failed(ONE_ATTEMPT, 20.0)
    assert outcome is FailureOutcome.EXHAUSTED
    clock = Clock(0.0, NOW_MS)
    restored = ledger_of(state_of(ledger, clock), ONE_ATTEMPT, clock)
    assert not restored.retries.emit_due(19.0, 2, 9)
    assert restored.retries.emit_due(21.0, 2, 9)
