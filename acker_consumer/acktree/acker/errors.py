"""The errors of the acker."""

from acktree.schemas.errors import AcktreeError, NoMetrics

__all__ = ["NoMetrics", "NotCoPartitioned"]


class NotCoPartitioned(AcktreeError):
    """The group gave this acker a partition of one control topic without the same one of the other."""
