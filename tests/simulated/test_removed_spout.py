"""A Python spout that an operator takes out of the topology while it runs."""

import pytest

from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt, Spout, UnknownComponent
from acktree.testing import TopologyTester
from acktree.testing.parts import BOOTSTRAP

KEPT = """
name = "t"
[spouts.kept]
emits = ["in"]
[bolts.check]
reads = ["in"]
"""
BOTH = (
    KEPT
    + """
[spouts.removed]
emits = ["in"]
retry_initial_s = 20.0
"""
)


class EmitsNothing(Spout):
    def next_tuple(self, emitter):
        pass


class ThreeNumbers(Spout):
    """Emits three messages, and counts their ends and the calls."""

    retry = True

    def prepare(self, context):
        self.waiting, self.acked, self.calls, self.is_active = [1, 2, 3], [], 0, True

    def next_tuple(self, emitter):
        self.calls += 1
        if self.waiting:
            number = self.waiting.pop()
            emitter.emit(str(number), message_id=number)

    def ack(self, message):
        self.acked.append(message.id)

    def deactivate(self):
        self.is_active = False


class FailsAtFirst(BasicBolt):
    """Fails what it sees for the first time."""

    def prepare(self, context):
        self.seen = set()

    def execute(self, tup, emit):
        if tup.value not in self.seen:
            self.seen.add(tup.value)
            raise ValueError("not yet")


def test_a_removed_spout_finishes_only_its_pending_messages_and_says_why_it_ends():
    spouts = {"kept": EmitsNothing, "removed": ThreeNumbers}
    with TopologyTester(parse_topology(BOTH), spouts=spouts, bolts={"check": FailsAtFirst}) as tester:
        tester.run_until(lambda: len(tester.failures("removed")) == 3, what="the failures")
        spout = tester.handler("removed")
        tester._as_operator(lambda: apply_topology(BOOTSTRAP, parse_topology(KEPT), {}))
        tester.run_until(lambda: not spout.is_active, what="the removal is noticed")
        spout.waiting, calls = [4], spout.calls
        with pytest.raises(
            UnknownComponent, match="no longer has spout removed; none of its messages are pending"
        ):
            tester.run_for(60.0)
        assert sorted(spout.acked) == [1, 2, 3]
        assert spout.calls == calls
