"""Functions that block, called by an AsyncBolt in threads."""

import asyncio
import threading

from acktree.producers import AsyncBolt
from acktree.producers.testing import BoltDouble


def test_as_many_functions_run_in_threads_as_the_bolt_executes_tuples():
    count = 40
    barrier = threading.Barrier(count)

    class AsksInThreads(AsyncBolt):
        max_concurrent = count

        async def execute(self, tup, emit):
            await asyncio.to_thread(barrier.wait, 30)

    double = BoltDouble(AsksInThreads())
    double.give(*[b"x"] * count)
    while double.is_busy:
        double.tick()
    assert double.acked == set(range(count))
    double.close()
