"""The event loop of an AsyncBolt: what it leaves when it ends, or when its process is killed."""

import asyncio
import gc
import threading
import warnings

import pytest

from acktree.core import world
from acktree.producers.worker.executing.loop_thread import LoopThread
from deadlines import ANSWER_S
from simulated_kafka import Simulation


class Ended(KeyboardInterrupt):
    """What ends the loop: asyncio hands on nothing else."""


def end() -> None:
    raise Ended


@pytest.fixture
def loop() -> LoopThread:
    made = LoopThread("test")
    made.start()
    return made


def keep_busy(loop: LoopThread) -> threading.Event:
    """Return what lets the loop go on."""
    goes_on = threading.Event()
    loop.soon(goes_on.wait, ANSWER_S)
    return goes_on


def test_the_last_work_is_done_though_the_loop_ends_before_it_begins(loop: LoopThread) -> None:
    goes_on, done = keep_busy(loop), []

    async def clean_up() -> str:
        done.append(threading.current_thread())
        return "clean"

    loop.soon(end)
    threading.Timer(0.01, goes_on.set).start()
    assert loop.wait_for_last(clean_up()) == "clean"
    assert done == [threading.current_thread()]
    loop.close()


def test_the_last_work_goes_on_where_it_was_when_the_loop_ended(loop: LoopThread) -> None:
    threads = []

    async def clean_up() -> str:
        threads.append(threading.current_thread())
        asyncio.get_running_loop().call_soon(end)
        await asyncio.sleep(0.01)
        threads.append(threading.current_thread())
        return "clean"

    assert loop.wait_for_last(clean_up()) == "clean"
    assert threads[0] is not threads[1] is threading.current_thread()
    loop.close()


def test_work_that_the_loop_has_not_begun_when_it_ends_raises_what_ended_it(loop: LoopThread) -> None:
    goes_on = keep_busy(loop)
    loop.soon(end)
    threading.Timer(0.01, goes_on.set).start()
    with pytest.raises(Ended):
        loop.wait(asyncio.sleep(0))
    loop.close()


@pytest.mark.parametrize("ends", [False, True])
def test_closing_cancels_all_tasks_also_of_a_loop_that_has_ended(loop: LoopThread, ends: bool) -> None:
    began, cancelled = threading.Event(), []

    async def work() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append("work")

    loop.begin(work())
    assert began.wait(ANSWER_S)
    if ends:
        loop.soon(end)
    loop.close()
    assert cancelled == ["work"]


@pytest.mark.virtual
def test_a_killed_process_leaves_no_coroutine_that_was_never_awaited(simulation: Simulation) -> None:
    """Nobody has forgotten to await it: the process is gone."""

    async def never() -> None:
        raise AssertionError

    def run() -> None:
        loop = LoopThread("test")
        loop.start()
        loop.soon(lambda: (asyncio.ensure_future(never()), world.sleep(3600)))
        world.sleep(1)
        loop.wait(never())

    process = simulation.start_process(run)
    world.sleep(2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        simulation.kernel.kill(process)
        world.sleep(1)
        gc.collect()
    assert not [str(each.message) for each in seen if "never awaited" in str(each.message)]
