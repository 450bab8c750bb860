"""Errors of topologies, brokers and settings. Each names the invalid value and says what to do."""

from acktree.wire.errors import AcktreeError


class BadTopology(AcktreeError):
    """The topology file is invalid; the message names the key, its line and the allowed values."""


class UnknownTopology(AcktreeError):
    """No topology of that name is published on this cluster."""


class TopologyChanged(AcktreeError):
    """Another version was published meanwhile, so nothing was changed; check it, and repeat the change."""


class UnknownVersion(AcktreeError):
    """A tuple or root names a topology version that the registry does not hold."""


class MissingTopic(AcktreeError):
    """A topic that must exist does not."""


class BrokerUnreachable(AcktreeError):
    """No broker answered at the bootstrap address in time."""


class TransactionTooSlow(AcktreeError):
    """A broker answers, but the records of a transaction did not reach it in time."""


class BrokerRefused(AcktreeError):
    """The broker rejected a request."""


class NoMetrics(AcktreeError):
    """Metrics cannot be served at the given host and port."""


class NotAuthenticated(BrokerRefused):
    """The broker rejected this client's credentials, a certificate is not trusted, or there is no token."""


class NotAuthorized(BrokerRefused):
    """The principal lacks a right: ``acktree acl plan`` lists what its role needs."""


class RefusedSetting(AcktreeError):
    """A client setting would break a guarantee of acktree."""


def how_to_install(extra: str) -> str:
    """Return how the packages of an extra are installed: there is no release, so from a clone.

    >>> how_to_install("spark")
    "pip install '.[spark]' in the root of a clone of acktree"
    """
    return f"pip install '.[{extra}]' in the root of a clone of acktree"
