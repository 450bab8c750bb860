"""Manages a worker's group membership: the rebalance protocol and its timeouts.

Invariant: with KIP-848 (``group.protocol=consumer``) the session timeout is a setting of the group on the
broker, and no client may set one. The client itself never chooses where to read: ``inputs.py`` does.
"""

from acktree.core.kafka.log_reader import reader_settings
from acktree.core.kafka.settings import Settings, is_kip_848

SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS = 10_000, 3_000
EXACTLY_ONCE_SESSION_TIMEOUT_MS, EXACTLY_ONCE_HEARTBEAT_INTERVAL_MS = 6_000, 2_000
"""The shortest session that brokers allow by default, because readers wait for a dead worker's transaction
until its successor has its partitions."""


def group_settings(bootstrap: str, group: str, user: Settings, *, exactly_once: bool) -> dict[str, object]:
    """Return the settings of the group's consumer, for the protocol that the user chose.

    The user's own timeouts take precedence.

    Raises:
        RefusedSetting: a user setting would break a guarantee.
    """
    if is_kip_848(user):
        return reader_settings(bootstrap, group, user)
    session_ms, heartbeat_ms = SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS
    if exactly_once:
        session_ms, heartbeat_ms = EXACTLY_ONCE_SESSION_TIMEOUT_MS, EXACTLY_ONCE_HEARTBEAT_INTERVAL_MS
    timeouts = {"session_timeout_ms": session_ms, "heartbeat_interval_ms": heartbeat_ms}
    return reader_settings(bootstrap, group, user, **timeouts)
