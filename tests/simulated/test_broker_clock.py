"""A delay that a bolt asks for is counted by the broker's clock, whatever that of the spout's driver says."""

import pytest

from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt, RetryLater
from acktree.testing import TopologyTester

TOPOLOGY = parse_topology("""
name = "t"
message_timeout_s = 1000
[spouts.lines]
topics = ["lines"]
emits = ["words"]
[bolts.keep]
reads = ["words"]
""")
DELAY_S = 60.0


class AsksToWait(BasicBolt):
    """Asks to wait at first, and keeps when it was called."""

    def __init__(self) -> None:
        self.called_s: list[float] = []

    def execute(self, tup, emit):
        self.called_s.append(world.monotonic_s())
        if len(self.called_s) == 1:
            raise RetryLater(DELAY_S, "closed")


def run(skew_s: float, restart_after_s: float | None) -> float:
    """Return how long the record has waited, where the broker's clock is wrong by so much."""
    keep = AsksToWait()
    stages = {"lines": lambda row: [row.value]}
    with TopologyTester(TOPOLOGY, bolts={"keep": lambda: keep}, stages=stages, partitions=1) as tester:
        tester.step_clock("broker", skew_s)
        tester.kill("lines")  # the driver has known the broker with its clock as it was
        tester.run_for(20.0)
        tester.send("lines", "a")
        tester.run_until(lambda: bool(keep.called_s), what="the first call")
        if restart_after_s is not None:
            tester.run_for(restart_after_s)
            tester.kill("lines")
        tester.run_until_done()
    first_s, second_s = keep.called_s
    return second_s - first_s


@pytest.mark.parametrize("skew_s", [-100.0, 0.0, 100.0], ids=["behind", "right", "ahead"])
@pytest.mark.parametrize("restart_after_s", [None, 40.0], ids=["one driver", "two drivers"])
def test_a_delay_is_kept_where_the_clocks_differ(skew_s, restart_after_s):
    """A second driver reads the failure again, and counts what has passed of the delay."""
    assert DELAY_S <= run(skew_s, restart_after_s) < DELAY_S + 15
