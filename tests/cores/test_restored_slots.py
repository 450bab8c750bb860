"""When a record is due that was stored with its slot, where a clock or a delay would have it otherwise."""

import pytest

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import FailureOutcome
from acktree.producers.ledger.slot_states import ledger_of, state_of
from acktree.wire.ids import generation_of

POLICY = RetryPolicy(initial_s=1, max_s=4, max_attempts=1_000, max_after_s=600)
ONE_ATTEMPT = RetryPolicy(initial_s=1, max_s=4, max_attempts=1, max_after_s=600)


def failed(policy: RetryPolicy, after_s: float | None) -> tuple[PartitionLedger, FailureOutcome]:
    ledger = PartitionLedger(0, 0, 1, policy)
    ledger.emit(1, 1, 0.0)
    ((_, outcome),) = ledger.failed(generation_of(1, 0), 0, 0.0, counts=True, after_s=after_s)
    return ledger, outcome


@pytest.mark.parametrize(("away_s", "left_s"), [(0, 20), (7, 13), (60, 0)])
def test_a_waiting_record_keeps_its_due_time_whatever_the_next_machines_clock(away_s: int, left_s: int):
    ledger, _ = failed(POLICY, 20.0)
    restored = ledger_of(state_of(ledger, 0.0).aged(1000 * away_s), POLICY, 5_000.0)
    assert not restored.retries.emit_due(5_000.0 + left_s - 0.5, 2, 9)
    assert restored.retries.emit_due(5_000.0 + left_s + 0.5, 2, 9)


def test_a_record_about_to_be_given_up_is_due_once_more_but_only_after_its_delay():
    ledger, outcome = failed(ONE_ATTEMPT, 20.0)
    assert outcome is FailureOutcome.EXHAUSTED
    restored = ledger_of(state_of(ledger, 0.0), ONE_ATTEMPT, 0.0)
    assert not restored.retries.emit_due(19.0, 2, 9)
    assert restored.retries.emit_due(21.0, 2, 9)
