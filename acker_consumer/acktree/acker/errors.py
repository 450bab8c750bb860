"""The errors of the acker."""

from acktree.schemas.errors import AcktreeError


class NotCoPartitioned(AcktreeError):
    """The group gave this acker a partition of one control topic without the same one of the other."""


class NoMetrics(AcktreeError):
    """The page of metrics cannot be served where it was asked for."""
