"""Builds the settings of librdkafka's clients, with those that the guarantees need.

Invariant: a user's property passes through untouched unless it would break a guarantee; then it is refused
with the reason, never overridden silently.
"""

from collections.abc import Mapping
from typing import Any

from acktree.core.errors import RefusedSetting

Settings = Mapping[str, str]

LEADER_MAX_AGE_MS = 5_000
"""How long an admin client uses cached partition leaders.

It does not refresh them when a leader epoch is refused. With librdkafka's default of 15 minutes, requests for
log ends would fail that long after a broker restart, and an acker's clock would stop at the log end.
"""

OAUTH_CALLBACK = "oauth_cb"
"""The one property that is not librdkafka's: MODULE:FUNCTION that makes tokens; see oauth.py."""

REGISTRY_PREFIX = "schema.registry."
"""Properties of a Schema Registry's client: no Kafka client gets them."""

ANY_SIZE: Settings = {"message.max.bytes": "1000000000"}
"""Of a producer whose records may be as large as their topic takes; librdkafka's default is less."""

MAX_FETCHED_KBYTES = 16_384
"""So much a consumer fetches ahead; librdkafka's default is 64 MB."""
MAX_QUEUED_KBYTES = 32_768
"""So much waits in a producer, or one record if that is larger; librdkafka's default is 1 GB."""

_COMMON = {"log.connection.close": False, "client.id": "acktree"}

_CONSUMER: dict[str, tuple[Any, str]] = {
    "enable.auto.commit": (False, "offsets are committed when the work behind them is done, not on a timer"),
    "enable.auto.offset.store": (False, "offsets are committed when the work behind them is done"),
    "isolation.level": ("read_committed", "records of aborted transactions must not be read"),
    "check.crcs": (True, "a record damaged in transit must be an error, not a tuple"),
    "auto.offset.reset": (
        "earliest",
        "records from before the group's first commit would be skipped, and their trees would never finish",
    ),
}
_PRODUCER: dict[str, tuple[Any, str]] = {
    "enable.idempotence": (True, "a retry inside the client must not duplicate or reorder records"),
    "acks": ("all", "an acknowledged record must survive the loss of a broker"),
}
_CONSUMERS_ONLY = frozenset(
    (
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
    )
)
"""Of a group's member; librdkafka warns of each that a producer is given."""
_OURS = {
    "group.id": "it is part of the topology: TOPOLOGY.COMPONENT",
    "bootstrap.servers": "give it with --bootstrap-server",
    "transactional.id": "it fences zombies and is chosen per process",
    "enable.partition.eof": "acktree sets it for the clients that need the end of a topic, and only for them",
    "delivery.report.only.error": "delivery reports say what is in the log",
}


def _merge(base: dict[str, Any], promised: Mapping[str, tuple[Any, str]], user: Settings) -> dict[str, Any]:
    """Merge settings: ``base`` may override what is promised, the user's settings may not."""
    user = {key: value for key, value in user.items() if not key.startswith(REGISTRY_PREFIX)}
    for key, value in user.items():
        if key in _OURS:
            raise RefusedSetting(f"{key}={value} is refused: {_OURS[key]}")
        if key in promised and str(value).lower() not in (str(promised[key][0]).lower(), _alias(key)):
            needed, reason = promised[key]
            raise RefusedSetting(f"{key}={value} is refused: {reason}; leave it at {str(needed).lower()}")
    kept = {key: value for key, (value, _) in promised.items()}
    return {**kept, **base, **{key: value for key, value in user.items() if key not in promised}}


def _alias(key: str) -> str:
    return "-1" if key == "acks" else ""


def is_kip_848(user: Settings) -> bool:
    """Return whether the user's settings ask for the KIP-848 protocol."""
    return user.get("group.protocol", "classic").lower() != "classic"


def is_incremental(user: Settings) -> bool:
    """Return whether a rebalance moves some partitions and leaves the others, as the user chose."""
    return is_kip_848(user) or "cooperative" in user.get("partition.assignment.strategy", "")


def consumer_settings(bootstrap: str, group: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a consumer; ``ours`` has underscores for dots and wins over the defaults.

    Raises:
        RefusedSetting: a user setting would break a guarantee.
    """
    base = {
        **_COMMON,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 200_000,
        "queued.max.messages.kbytes": MAX_FETCHED_KBYTES,
        **{key.replace("_", "."): value for key, value in ours.items()},
    }
    return _merge(base, _CONSUMER, user)


def producer_settings(bootstrap: str, user: Settings, **ours: Any) -> dict[str, Any]:
    """Return the settings of a producer; ``ours`` has underscores for dots and wins over the defaults.

    Raises:
        RefusedSetting: a user setting would break a guarantee.
    """
    base = {
        **_COMMON,
        "bootstrap.servers": bootstrap,
        "linger.ms": 5,
        "partitioner": "murmur2_random",
        "delivery.report.only.error": True,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": max(MAX_QUEUED_KBYTES, _largest_kbytes(user)),
        **{key.replace("_", "."): value for key, value in ours.items()},
    }
    mine = {key: value for key, value in user.items() if key not in _CONSUMERS_ONLY}
    return _merge(base, _PRODUCER, mine)


def _largest_kbytes(user: Settings) -> int:
    """Return the size of the largest record: it has to fit into the producer's queue."""
    text = str(user.get("message.max.bytes", ""))
    return int(text) // 1024 + 1_024 if text.isdecimal() else 0


def admin_settings(bootstrap: str, user: Settings) -> dict[str, Any]:
    """Return the settings of an admin client: the user's connection and security properties."""
    mine = {
        key: value
        for key, value in user.items()
        if key not in (*_CONSUMER, *_PRODUCER) and not key.startswith(REGISTRY_PREFIX)
    }
    return {**_COMMON, "metadata.max.age.ms": LEADER_MAX_AGE_MS, **mine, "bootstrap.servers": bootstrap}
