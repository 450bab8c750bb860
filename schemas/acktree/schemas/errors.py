"""The errors of the contract. Each text says what is wrong, with the offending value, and what to do."""


class AcktreeError(Exception):
    """Base of every error raised on purpose; the command line prints it as one sentence, exit code 2."""


class MalformedRecord(AcktreeError):
    """Bytes that are not a record of ours: set aside with their coordinates, never half applied."""


class BadTopology(AcktreeError):
    """The topology file has a mistake; the text names the key, its line and what it may be."""


class UnknownTopology(AcktreeError):
    """No topology of that name is published on this cluster."""


class UnknownVersion(AcktreeError):
    """A tuple or root names a topology version that the registry does not hold."""


class MissingTopic(AcktreeError):
    """A topic that must exist does not."""


class BrokerUnreachable(AcktreeError):
    """No broker answered at the bootstrap address in time."""


class BrokerRefused(AcktreeError):
    """The broker answered, and refused what was asked."""


class NoMetrics(AcktreeError):
    """The page of metrics cannot be served where it was asked for."""


class NotAuthenticated(BrokerRefused):
    """The broker does not let this client in, or its certificate is not to be trusted: who are you?"""


class NotAuthorized(BrokerRefused):
    """The principal may not do what was asked: ``acktree acl plan`` lists what its role needs."""


class RefusedSetting(AcktreeError):
    """A client setting of the user that would break one of our promises."""
