"""A dead letter names the tuple that failed for good, with what it held and where the bolt raised."""

from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt
from acktree.testing import TopologyTester
from acktree.wire.dead_letter import MAX_FAILED_VALUE_BYTES

TOPOLOGY = parse_topology("""
name = "t"
ackers = 2
[spouts.lines]
topics = ["lines"]
emits = ["words"]
max_attempts = 2
[bolts.check]
reads = ["words"]
[bolts.other]
reads = ["words"]
""")


def words(row):
    """Split a line."""
    return row.value.split()


class Check(BasicBolt):
    """Fails one word, in a function of its own."""

    def execute(self, tup, emit):
        if tup.value.startswith(b"poison"):
            self.check(tup.value)

    def check(self, word):
        raise ValueError(f"{len(word)} is no number")


class Other(BasicBolt):
    def execute(self, tup, emit):
        pass


def the_dead_letter_of(line: bytes):
    bolts = {"check": Check, "other": Other}
    with TopologyTester(TOPOLOGY, bolts=bolts, stages={"lines": words}) as topology:
        topology.send("lines", b"a b")
        topology.send("lines", line)
        topology.run_until_done()
        (found,) = topology.dead_letters()
        tuples = [(record.value, "/".join(map(str, record.place))) for record in topology.records("words")]
        failures = topology.failures("lines")
    return found, tuples, failures


def test_a_dead_letter_names_the_tuple_that_failed_with_its_value_and_stack():
    found, tuples, failures = the_dead_letter_of(b"c poison d")
    assert (b"poison", found.failed_tuple) in tuples
    assert (found.failed_value, found.failed_value_note) == ("poison", "")
    assert "in check" in found.stack
    assert found.stack.endswith("ValueError: 6 is no number\n")
    assert len(failures) == 2


def test_a_long_value_is_kept_up_to_a_limit_and_the_dead_letter_says_so():
    size = MAX_FAILED_VALUE_BYTES + 1
    found, _, _ = the_dead_letter_of(b"poison".ljust(size, b"x"))
    assert found.failed_value == "poison".ljust(MAX_FAILED_VALUE_BYTES, "x")
    assert found.failed_value_note == f"the first {MAX_FAILED_VALUE_BYTES:,} of {size:,} bytes"
