"""Waits of the simulated world last as long as those of threads do: whatever wakes the task meanwhile."""

from acktree.core import world
from simulated_kafka import Simulation, simulated


def run(simulation: Simulation, wait) -> float:
    """Return how long a wait lasts in a task that something else wakes after a second."""
    lasted: list[float] = []

    def measure() -> None:
        kernel, begin_s = simulation.kernel, world.monotonic_s()
        task = kernel.current
        kernel.call_after(1.0, lambda: kernel.wake(task))
        wait()
        lasted.append(world.monotonic_s() - begin_s)

    simulation.run(measure)
    return lasted[0]


def test_a_wait_for_a_thread_lasts_until_it_ends_or_the_time_is_over():
    with simulated() as made:
        assert run(made, lambda: world.start_thread(lambda: world.sleep(5.0), "t").join()) == 5.0
        assert run(made, lambda: world.start_thread(lambda: world.sleep(5.0), "t").join(3.0)) == 3.0
        made.run(lambda: world.sleep(5.0))


def test_a_wait_for_an_event_lasts_until_it_is_set_or_the_time_is_over():
    with simulated() as made:
        flag = world.event()
        assert run(made, lambda: flag.wait(3.0)) == 3.0
        made.kernel.call_after(2.0, flag.set)
        assert run(made, flag.wait) == 2.0
