"""Errors of simulated topologies; each says what to do."""

from acktree.wire.errors import AcktreeError


class SimulationError(AcktreeError):
    """A simulation cannot continue."""


class NotSimulated(SimulationError):
    """The simulated Kafka does not support a call, or was called by a real thread."""


class NothingCanHappen(SimulationError):
    """Every task waits for something that can never happen."""


class TookTooLong(SimulationError):
    """An expected event did not happen within the limit of virtual time."""


class UnknownFault(SimulationError):
    """A plan of faults names something that does not exist."""


class FaultNeverStruck(SimulationError):
    """A fault that a test requested did not happen, so the test does not show what it should."""


class MissingPart(SimulationError):
    """A tester lacks the code of a spout or bolt, or was given code for one that is not in its topology."""


class UnknownName(SimulationError):
    """A test names a topic, spout or bolt that the tested topology does not have."""


class NotStarted(SimulationError):
    """A tester is used outside of its ``with`` block."""
