"""Errors of simulated topologies; each says what to do."""

from acktree.wire.errors import AcktreeError


class SimulationError(AcktreeError):
    """A simulation cannot continue."""


class NotSimulated(SimulationError):
    """The simulated Kafka does not support a request, or was called by a real thread."""


class NothingCanHappen(SimulationError):
    """Everything waits for an event that never comes."""


class TookTooLong(SimulationError):
    """The expected event did not happen within the limit of virtual time."""


class UnknownFault(SimulationError):
    """A plan of faults names something that does not exist."""


class FaultNeverStruck(SimulationError):
    """A fault that a test requested has not happened, so the test proves nothing."""


class MissingPart(SimulationError):
    """A tester lacks the code of a spout or bolt in its topology, or has code that its topology lacks."""


class UnknownName(SimulationError):
    """A test names a topic, spout or bolt that the tested topology does not have."""


class NotStarted(SimulationError):
    """A tester is used outside of its ``with`` block."""
