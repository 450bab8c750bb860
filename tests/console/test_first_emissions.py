"""The age of a record is that of its first emission, by the log; what the log does not show is not known."""

import numpy as np
import pytest

from acktree.console.view.first_emissions import EmissionSearch, longest_gap_s
from acktree.schemas.ids import generation_of, root_id
from acktree.schemas.topology import SpoutTable, Topology

GAP_S = 300.0
KEY = 3, 10


def init(offset, at_s, run=1, attempt=0, slot=3):
    return root_id(slot, generation_of(run, attempt), offset), int(1000 * at_s)


def search(*windows, wanted=(KEY,), floors=None, command_runs=(), back_to_s=None):
    """Search windows of inits, the latest first; ``back_to_s``: the log ends there."""
    made = EmissionSearch(wanted, GAP_S, floors or {}, command_runs)
    for window in windows:
        made.add([np.array([root], np.uint64) for root, _ in window], [time_ms for _, time_ms in window])
        made.end_window()
    if back_to_s is not None:
        made.end_log(int(1000 * back_to_s))
    return made


def first_of(made, key=KEY):
    """Return when a record was emitted first, None if that is not known."""
    found = made.found.get(key)
    return found.earliest_ms / 1000 if found is not None and found.is_first else None


def test_replays_do_not_make_a_record_younger():
    made = search([init(4, 100), init(10, 1000), init(10, 1036, attempt=1), init(10, 1075, attempt=2)])
    assert (first_of(made), made.is_done) == (1000, True)
    found = made.found[KEY]
    assert (found.latest_ms, len(found.roots)) == (1_075_000, 3)


def test_attempt_0_is_no_proof_as_attempts_begin_again_after_16():
    """A bolt that is down for ten minutes: each timeout is an emission, and the 17th has attempt 0 again."""
    emissions = [init(10, 1000 + 36 * number, 1 + number // 16, number % 16) for number in range(20)]
    assert first_of(search([init(4, 100), *emissions])) == 1000
    made = search(emissions[16:])
    assert (first_of(made), made.is_done) == (None, False), "what precedes it was not read"
    assert first_of(search(emissions[16:], [init(4, 100), *emissions[:16]])) == 1000


def test_a_restarted_driver_does_not_make_a_record_younger():
    made = search([init(4, 100), init(10, 1000, run=1), init(10, 1100, run=2), init(10, 1140, 3, 1)])
    assert first_of(made) == 1000


def test_a_pause_of_the_whole_spout_proves_nothing():
    """Nothing of the slot in a window is what a stopped driver looks like."""
    made = search([init(10, 9000, run=2)], [init(10, 9000, slot=4)])
    assert (first_of(made), made.is_done) == (None, False)
    made = search([init(10, 9000, run=2)], [], [init(4, 900), init(10, 1000)], [init(4, 100)])
    assert first_of(made) == 1000


@pytest.mark.parametrize(("back_to_s", "first_s"), [(0, 1000), (700, 1000), (701, None)])
def test_at_the_end_of_the_log_it_counts_how_far_the_log_reaches_back(back_to_s, first_s):
    assert first_of(search([init(10, 1000)], back_to_s=back_to_s)) == first_s


def test_a_record_whose_first_emission_has_expired_is_of_unknown_age():
    made = search([init(4, 100), init(10, 1000, attempt=5)], back_to_s=0)
    assert first_of(made) is None
    assert made.found[KEY].earliest_ms == 1_000_000, "a lower bound"


def test_emissions_before_a_rewind_do_not_count():
    made = search([init(4, 100), init(10, 1000, run=1), init(10, 2000, run=2)], floors={3: 2})
    assert first_of(made) == 2000


def test_a_replay_command_begins_a_new_age():
    made = search([init(4, 100), init(10, 1000, run=1), init(10, 2000, run=2)], command_runs=[2])
    assert (first_of(made), made.is_done) == (2000, True)


def test_records_without_an_init_are_given_up():
    made = search([init(4, 100), init(10, 1000)], wanted=[KEY, (3, 11)])
    made.give_up([KEY, (3, 11)])
    assert (made.is_done, list(made.found)) == (True, [KEY])


def test_the_longest_gap_is_longer_than_a_timeout_and_a_back_off():
    topology = Topology(
        name="t", message_timeout_s=30, spouts={"s": SpoutTable(emits=("a",), retry_max_s=60)}
    )
    assert longest_gap_s(topology) > 1.1 * 30 + 1 + 1.1 * 60
    patient = Topology(name="t", message_timeout_s=0, spouts={"s": SpoutTable(emits=("a",))})
    assert longest_gap_s(patient) > patient.control_retention_s
