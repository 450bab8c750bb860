"""One schedule each: where a record of a spout could be lost, stuck for hours or counted as done."""

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.wire.ids import generation_of
from spark.spout_model import SpoutModel

FIRST = generation_of(1, 0)


class SmallModel(SpoutModel):
    """A log without holes; a root for each record or for blocks of five."""

    absent = frozenset()


class PatientModel(SmallModel):
    """Failures never lead to a dead letter."""

    policy = RetryPolicy(initial_s=1, max_s=60, max_attempts=10_000)


def open_root(model: SpoutModel, offset: int) -> tuple[int, int]:
    """Return the newest emission of an offset that has no result."""
    return max(root for root in model.open_roots() if offset in model.roots[root])


def test_a_replay_that_failed_is_replayed_after_its_driver_died_in_the_back_off() -> None:
    model = SmallModel()
    model.batch(5, 5, 0.0)
    model.finish((FIRST, 0), False)
    model.asked()
    model.batch(0, 0, 5.0)
    replay = open_root(model, 0)
    model.finish(replay, False)
    model.asked()
    model.commit()
    model.asked()  # Spark asks again and names the batch that holds the failed replay
    model.commit()
    assert model.position == 2
    model.restart(keeps=True, unlogged=False, block=5)
    model.batch(0, 0, 0.0)
    model.batch(0, 0, 5.0)
    assert open_root(model, 0) > replay
    model.end()


def test_a_failure_whose_replay_was_planned_and_not_logged_is_due_again() -> None:
    model = SmallModel()
    model.batch(5, 5, 0.0)
    model.finish((FIRST, 0), False)
    model.read()
    model.restart(keeps=True, unlogged=True, block=5)
    model.asked()
    model.commit()
    assert model.led.retries.failed_attempt(FIRST, 0) is not None
    model.end()


def ended_command() -> SpoutModel:
    """Return a spout with a block of five in flight, of which a command took two records and has ended."""
    model = SmallModel()
    model.batch(5, 5, 0.0)
    model.command(0, 2)
    model.batch(0, 5, 0.0)
    model.finish(open_root(model, 0), True)
    model.finish(open_root(model, 1), True)
    model.read()
    model.commit()
    assert model.led.command is None
    assert model.led.pending == 3
    return model


def test_a_duplicate_result_of_a_finished_command_finishes_nothing_of_the_block() -> None:
    model = ended_command()
    model.send_again(0)
    model.read()
    model.check()
    assert model.led.pending == 3
    model.end()


def test_a_duplicate_result_of_a_command_finishes_nothing_in_the_next_driver_either() -> None:
    model = ended_command()
    model.restart(keeps=True, unlogged=False, block=1)
    model.send_again(0)
    model.read()
    model.check()
    assert model.led.pending == 3
    model.finish((FIRST, 0), True)
    model.read()
    model.commit()
    model.commit()
    assert model.led.pending == 0


def test_the_next_driver_also_replays_the_rest_of_a_failed_block() -> None:
    model = SmallModel()
    model.batch(5, 5, 0.0)
    model.command(0, 2)
    model.batch(0, 5, 0.0)
    model.restart(keeps=True, unlogged=False, block=5)
    model.finish((FIRST, 0), False)
    model.batch(0, 0, 0.0)
    model.batch(0, 0, 5.0)
    for offset in (2, 3, 4):
        rest = open_root(model, offset)
        assert model.roots[rest] == {offset}
        model.finish(rest, True)
    model.read()
    model.check()
    assert model.led.pending == 2
    model.end()


def test_a_duplicate_failure_of_a_block_whose_records_are_replayed_is_ignored() -> None:
    model = SmallModel()
    model.batch(5, 5, 0.0)
    model.command(0, 2)
    model.batch(0, 5, 0.0)
    model.finish((FIRST, 0), False)
    model.batch(0, 0, 0.0)
    model.batch(0, 0, 5.0)
    model.finish((FIRST, 0), False)
    model.batch(0, 0, 0.0)
    model.batch(0, 0, 5.0)  # the model checks that each root id is new
    assert len(model.roots) == 1 + 2 + 3, "the block, what the command took of it, and the rest"
    model.end()


def test_the_failure_of_a_block_read_twice_around_a_restart_replays_each_record_once() -> None:
    """Some of its records were done, and some were in the last batch of the driver that died."""
    model = SmallModel()
    model.batch(10, 10, 0.0)
    model.led.finish(7, 8)
    model.done.add(7)
    model.finish((FIRST, 5), False)
    model.read()
    model.led.block = 1
    model.batch(0, 0, 5.0)
    again = [root for root in model.open_roots() if root[0] > FIRST]
    assert [root[1] for root in again] == [5, 6, 8, 9]
    model.finish(again[0], True)
    model.restart(keeps=True, unlogged=False, block=5)
    model.batch(0, 0, 0.0)
    model.batch(0, 0, 100.0)
    assert [root for root in model.open_roots() if root[0] > FIRST] == again[1:], "nothing twice"
    assert set(model.led.done) == {5, 7}
    model.end()


def test_a_failed_block_that_is_acked_after_the_restart_is_done() -> None:
    model = SmallModel()
    model.batch(5, 5, 0.0)
    model.finish((FIRST, 0), False)
    model.asked()
    model.batch(0, 0, 5.0)
    model.restart(keeps=True, unlogged=False, block=5)
    model.finish((FIRST, 0), True)
    model.read()
    assert model.led.frontier == 5
    model.end()


def test_a_command_applied_before_a_first_batch_that_crashes_is_completed() -> None:
    """Spark asks for the initial offset once more before it shows the batch that it has logged."""
    model = SmallModel()
    model.led.block = 1
    model.batch(30, 30, 0.0)
    for root in model.open_roots():
        model.finish(root, True)
    model.read()
    model.commit()
    model.restart(keeps=False, unlogged=False, block=1)
    model.command(0, 26)
    model.batch(0, 0, 0.0)  # emits twenty of what was asked for
    emitted = len(model.open_roots())
    assert (model.batches_logged, emitted) == (1, 20)
    model.restart(keeps=True, unlogged=False, block=1)
    assert model.led.command is not None
    for root in model.open_roots():
        model.finish(root, True)
    model.batch(0, 0, 0.0)
    assert len(model.open_roots()) == 26 - emitted
    model.end()


def test_records_in_flight_for_a_hundred_runs_are_emitted_again_and_not_lost() -> None:
    model = PatientModel()
    model.batch(5, 5, 0.0)
    model.batch(5, 5, 0.0)
    model.restart(keeps=True, unlogged=False, block=5, runs=98)
    model.finish((FIRST, 0), True)
    model.batch(0, 0, 0.0)
    assert model.led.frontier == 5, "a result of a run that is not too old counts"
    model.commit()
    model.restart(keeps=True, unlogged=False, block=5, runs=2)
    model.batch(0, 10, 0.0)
    assert open_root(model, 5)[0] == generation_of(model.run, 0)
    model.finish((FIRST, 5), True)
    model.read()
    assert model.led.pending == 5, "its first emission says nothing any more"
    model.end()


def test_a_driver_that_starts_a_hundred_runs_emits_records_in_flight_again() -> None:
    model = PatientModel()
    model.batch(5, 5, 0.0)
    while model.led.floor == 1:
        model.finish(open_root(model, 0), False)
        model.batch(0, 0, 0.0)
        model.batch(0, 10, 100.0)
    assert model.led.floor == model.run == 101
    model.finish(open_root(model, 0), True)
    model.read()
    assert model.led.frontier == 5


def test_emissions_of_a_record_that_always_fails_never_have_the_same_root_id() -> None:
    model = PatientModel()
    model.batch(5, 5, 0.0)
    model.finish(open_root(model, 0), False)
    for _ in range(70):
        model.batch(0, 0, 0.0)
        model.batch(0, 0, 100.0)  # the model checks that each root id is new
        model.finish(open_root(model, 0), False)
    assert len([root for root in model.roots if root[1] == 0]) == 71
    assert model.run == 5
    model.end()
