"""A whole spout task, its durable state included, in short schedules: crashes, commands, rewinds, blocks.

The model is that of the longer schedules in tests/spark; here metadata always runs short. It is slow beside
the other cores, so a small part of the seeds is run.
"""

from random import Random

from cores.script import Core, Did
from spark.spout_model import LOG_END, SpoutModel

STEPS = 8
BLOCKS = (1, 3, 5, 8)


class ShortSpout(SpoutModel):
    """A commit reaches 72 offsets, or more where few runs are done."""

    metadata_chars = 69


def run_seed(draw: Random, did: Did) -> None:
    """Run one schedule of up to eight steps, and let all of it end."""
    model = ShortSpout()
    for _ in range(draw.randint(2, STEPS)):
        step(draw, did, model)
        model.check()
    did("end")
    model.end()


def step(draw: Random, did: Did, model: ShortSpout) -> None:
    """Do one thing that can happen to a spout."""
    kind = draw.random()
    arguments: tuple[object, ...] = ()
    if kind < 0.35:
        verb, arguments = (
            model.batch,
            (draw.randint(0, 15), draw.randint(0, 40), draw.choice((0.0, 1.0, 100.0))),
        )
    elif kind < 0.65 and (roots := model.open_roots()):
        verb, arguments = model.finish, (draw.choice(roots), draw.random() < 0.6)
    elif kind < 0.8:
        verb = draw.choice((model.read, model.asked, model.commit))
    elif kind < 0.85 and model.log:
        verb, arguments = model.send_again, (draw.randrange(len(model.log)),)
    elif kind < 0.9:
        verb, arguments = model.restart, (draw.random() < 0.8, draw.random() < 0.3, draw.choice(BLOCKS))
    elif kind < 0.96:
        verb, arguments = model.command, (draw.randrange(LOG_END), draw.randint(1, 12))
    else:
        verb, arguments = model.rewind, (draw.randint(0, LOG_END),)
    did(verb.__name__, *arguments)
    verb(*arguments)


CORE = Core(run_seed, every=5)
