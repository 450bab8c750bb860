"""How long the test of a topology of three bolts takes, in real and in virtual time.

python benchmarks/topology_tester.py
"""

import time

from acktree.core.topology.file import BoltTable, SpoutTable, Topology
from acktree.producers import BasicBolt, Emit, Spout, SpoutEmitter, Tuple
from acktree.testing.tester import TopologyTester

RECORDS = 1_000
ROUNDS = 3
TOPOLOGY = Topology.model_validate(
    {
        "name": "measured",
        "ackers": 2,
        "spouts": {"numbers": SpoutTable.model_validate({"emits": ("a",)})},
        "bolts": {
            name: BoltTable.model_validate({"reads": (reads,), "emits": (emits,)})
            for name, reads, emits in (("first", "a", "b"), ("second", "b", "c"), ("third", "c", "d"))
        },
    }
)


class Numbers(Spout):
    """Emits numbers."""

    def __init__(self) -> None:
        self.count = 0

    def next_tuple(self, emitter: SpoutEmitter) -> None:
        """See Spout."""
        if self.count < RECORDS:
            self.count += 1
            emitter.emit(b"%d" % self.count, self.count)


class Copy(BasicBolt):
    """Emits what it is given."""

    def execute(self, tuple: Tuple, emit: Emit) -> None:
        """See BasicBolt."""
        emit(tuple.value)


def measure() -> tuple[float, float]:
    """Return the seconds of a test, and the virtual seconds in it."""
    began_s = time.perf_counter()
    bolts = {"first": Copy, "second": Copy, "third": Copy}
    with TopologyTester(TOPOLOGY, spouts={"numbers": Numbers}, bolts=bolts) as tester:
        tester.run_until_done()
        assert len(tester.acked("numbers")) == RECORDS
        virtual_s = tester.now_s
    return time.perf_counter() - began_s, virtual_s


if __name__ == "__main__":
    for _ in range(ROUNDS):
        took_s, passed_s = measure()
        print(f"{took_s:.2f} s for {RECORDS} records through three bolts, {passed_s:.1f} s of virtual time")
