"""What a driver reports of the record at a frontier: since when, how often it was emitted, if it waits.

Neither a replay nor a restart with its checkpoint makes a record younger; what is not known is a lower bound.
"""

from pyroaring import BitMap64

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.partitions.emission_times import FirstEmission
from acktree.producers.ledger.partitions.live_replay import LiveReplay
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.slot_states import ledger_of, state_of
from acktree.producers.ledger.task import SourceSlot, TaskLedger
from acktree.wire.control_records import Span
from acktree.wire.ids import generation_of

POLICY = RetryPolicy(1, 60, 10)
FIRST = generation_of(1, 0)


def ledger(end: int = 10, at_s: float = 100.0) -> PartitionLedger:
    made = PartitionLedger(0, 0, 1, POLICY)
    made.emit(end, 100, at_s)
    return made


def task_of(made: PartitionLedger) -> TaskLedger:
    return TaskLedger(0, {0: SourceSlot(0, "lines", 0, "id")}, {0: made}, 30.0)


def figures(made: PartitionLedger, now_s: float) -> dict[str, object]:
    """Return what is reported of the frontier beside its offset."""
    names = ("held_s", "held_longer", "emissions", "waiting")
    found = task_of(made).figures(now_s)
    return {name: found[f"{name}.lines.0"] for name in names if f"{name}.lines.0" in found}


def taken_over(made: PartitionLedger, at_s: float) -> PartitionLedger:
    """Return the ledger of the next driver, at 1 s of its clock, which begins at ``at_s`` of this one."""
    return ledger_of(state_of(made, at_s + 1.0), POLICY, 1.0)


def test_only_the_age_of_a_record_emitted_once_is_reported() -> None:
    assert figures(ledger(), 105.0) == {"held_s": 5.0}
    assert figures(PartitionLedger(0, 0, 1, POLICY), 105.0) == {"held_s": 0.0}


def test_a_replay_makes_no_record_younger_and_is_counted() -> None:
    made = ledger()
    made.failed(FIRST, 0, 110.0, counts=True)
    assert figures(made, 120.0) == {"held_s": 20.0, "waiting": 1}
    made.retries.emit_due(130.0, 1, 10)
    assert figures(made, 140.0) == {"held_s": 40.0, "emissions": 2}


def test_an_overdue_record_keeps_its_age() -> None:
    made = ledger()
    made.emit(20, 100, 200.0)
    assert made.fail_overdue(300.0, 400.0, 100) == 20
    assert figures(made, 500.0) == {"held_s": 300.0, "held_longer": 1, "waiting": 1}
    made = ledger()
    made.emit(20, 100, 200.0)
    assert figures(made, 150.0) == {"held_s": 50.0}
    made.fail_overdue(300.0, 400.0, 100)
    assert figures(made, 500.0)["held_s"] == 400.0, "it was known before"


def test_a_driver_that_takes_over_makes_no_record_younger() -> None:
    made = ledger()
    later = taken_over(made, 150.0)
    assert figures(later, 10.0) == {"held_s": 60.0}
    again = taken_over(later, 30.0)
    assert figures(again, 5.0) == {"held_s": 85.0}


def test_at_a_start_the_age_of_records_behind_the_frontier_is_a_lower_bound() -> None:
    later = taken_over(ledger(), 150.0)
    later.finish(0, 4)
    assert figures(later, 10.0) == {"held_s": 9.0, "held_longer": 1}
    assert figures(taken_over(later, 20.0), 5.0) == {"held_s": 24.0, "held_longer": 1}
    later.emit(12, 100, 2.0)
    later.finish(4, 10)
    assert figures(later, 10.0) == {"held_s": 8.0}, "nobody can have emitted that before"


def test_an_emission_dated_in_the_future_by_another_clock_counts_as_now() -> None:
    made = ledger()
    made.restore_first_emission(FirstEmission(0, 120.0, is_first=True))
    assert figures(made, 110.0) == {"held_s": 0.0}


def test_a_renewed_run_keeps_the_age_and_knows_no_first_emission_of_records_behind() -> None:
    made = ledger()
    made.renew()
    made.emit(10, 100, 150.0)
    assert figures(made, 160.0) == {"held_s": 60.0}
    made.finish(0, 1)
    assert figures(made, 160.0) == {"held_s": 10.0, "held_longer": 1}


def test_a_rewind_begins_a_new_age() -> None:
    made = ledger()
    made.finish(0, 10)
    made.rewind(4)
    made.emit(10, 100, 150.0)
    assert figures(made, 160.0) == {"held_s": 10.0}


def test_a_replay_command_begins_a_new_age_with_its_own_emission() -> None:
    made = ledger()
    made.finish(0, 8)
    made.apply(LiveReplay.of(0, 0, 2, [Span(2, 4)], 10))
    assert figures(made, 120.0) == {"held_s": 0.0, "waiting": 1}
    made.emit_again(1, 100, 130.0)
    made.emit_again(2, 100, 140.0)
    assert figures(made, 150.0) == {"held_s": 20.0}
    made.complete(BitMap64([2, 3]), 2, 150.0)
    assert made.pending_s == 20.0 + 10.0
    assert figures(made, 150.0) == {"held_s": 50.0}, "the record that held the frontier before"
