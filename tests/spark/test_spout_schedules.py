"""Random schedules of a spout and its driver, killed at any point: no record is lost, and none is stuck.

Each schedule is a seeded walk over the model of a spout, so one that fails is run again by its seed. In the
end all is quiet, the driver is killed once more, and every record is done then.
"""

import random

import pytest

from spark.spout_model import LOG_END, SpoutModel

SCHEDULES = 40
"""Schedules of one test; all of them run in seconds."""
STEPS = 60
MOST_RUNS = 112
"""More than a hundred, and fewer than half a round: a root that is older is taken for a newer one."""


class Walk:
    """A schedule; failures come in bursts, so that records are in their back-off when the driver dies."""

    def __init__(self, seed: int, model: SpoutModel, older: float = 0.0) -> None:
        """``older`` is how often an operator restores an older checkpoint at a start."""
        self.model, self.random, self.older = model, random.Random(seed), older
        self.steps = [
            *[self.batch] * 6,
            *[self.finish] * 8,
            *[self.model.read, self.model.asked, self.model.commit] * 2,
            *[self.restart] * 2,
            self.send_again,
            self.command,
            self.rewind,
            self.publish,
        ]

    def walk(self) -> None:
        for _ in range(STEPS):
            self.random.choice(self.steps)()
            self.model.check()
        self.model.restart(keeps=True, unlogged=False, block=self.model.block)
        self.model.end()

    def batch(self) -> None:
        seconds = self.random.choice([0.0, 0.0, 1.0, 3.0, 100.0])
        self.model.batch(self.random.randint(0, 15), self.random.randint(0, 40), seconds)

    def finish(self) -> None:
        roots = self.model.open_roots()
        for root in self.random.sample(roots, min(len(roots), self.random.randint(1, 4))):
            self.model.finish(root, self.random.random() < 0.6)

    def send_again(self) -> None:
        if self.model.log:
            self.model.send_again(self.random.randrange(len(self.model.log)))

    def restart(self) -> None:
        runs = self.random.choice([1, 1, 1, 1, 1, 60])
        if self.model.run + 2 * runs < MOST_RUNS:
            keeps, unlogged = self.random.random() < 0.85, self.random.random() < 0.3
            is_older = self.older and self.random.random() < self.older
            older = self.random.randrange(1_000) if is_older else None
            self.model.restart(keeps, unlogged, self.random.choice([1, 3, 5, 8]), runs, older)

    def rewind(self) -> None:
        if self.random.random() < 0.3:
            self.model.rewind(self.random.randint(0, LOG_END))

    def command(self) -> None:
        self.model.command(self.random.randrange(LOG_END), self.random.randint(1, 12))

    def publish(self) -> None:
        self.model.led.block = self.random.choice([1, 3, 5, 8])


@pytest.mark.parametrize("part", range(5))
def test_every_record_is_done_eventually_after_any_schedule_with_crashes(part: int) -> None:
    for seed in range(part * SCHEDULES, (part + 1) * SCHEDULES):
        try:
            Walk(seed, SpoutModel()).walk()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}") from error


def test_every_record_is_done_eventually_whatever_checkpoint_a_driver_begins_with() -> None:
    for seed in range(2 * SCHEDULES):
        try:
            Walk(seed, SpoutModel(), older=0.4).walk()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}") from error
