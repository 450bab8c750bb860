"""Errors of simulated topologies; each says what to do."""

from acktree.wire.errors import AcktreeError


class SimulationError(AcktreeError):
    """A simulation cannot go on."""


class NotSimulated(SimulationError):
    """The simulated Kafka was asked for something that it does not know, or by a real thread."""


class NothingCanHappen(SimulationError):
    """Everybody waits for something that never comes."""


class TookTooLong(SimulationError):
    """What was waited for did not happen within the limit of virtual time."""


class UnknownFault(SimulationError):
    """A plan of faults names something that does not exist."""


class FaultNeverStruck(SimulationError):
    """A fault that a test asked for has not happened, so the test has not shown what it is to show."""


class MissingPart(SimulationError):
    """A tester was not given what a spout or bolt of its topology does, or something its topology lacks."""


class UnknownName(SimulationError):
    """A test names a topic, spout or bolt that the tested topology does not have."""


class NotStarted(SimulationError):
    """A tester is used outside of its ``with`` block."""
