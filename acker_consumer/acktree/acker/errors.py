"""The errors of the acker."""

from acktree.schemas.errors import AcktreeError


class NotCoPartitioned(AcktreeError):
    """The group gave this acker a partition of one control topic without the same one of the other."""
