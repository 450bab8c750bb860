"""Errors of simulated topologies; each says what to do."""

from acktree.schemas.errors import AcktreeError


class SimulationError(AcktreeError):
    """A simulation cannot go on."""


class NotSimulated(SimulationError):
    """A client was asked for something that the simulated Kafka does not know."""


class NothingCanHappen(SimulationError):
    """Everybody waits for something that never comes."""


class TookTooLong(SimulationError):
    """What was waited for did not happen within the limit of virtual time."""


class UnknownFault(SimulationError):
    """A plan of faults names something that does not exist."""
