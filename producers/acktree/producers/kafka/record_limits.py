"""Reads which records each topic accepts, so that a tuple fails before its record is sent in vain.

Invariant: no batch exceeds the smallest limit, because a broker rejects a batch as a whole and does
not say for which of its records. Limits are read once; the broker enforces one that is lowered later.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka.admin import ConfigResource, ResourceType

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_admin
from acktree.core.kafka.errors import clear_errors, was_transient
from acktree.core.kafka.settings import Settings
from acktree.producers.columns import NO_TIMESTAMP
from acktree.producers.errors import InvalidTimestamp, MissingKey, TooLarge
from acktree.wire.errors import AcktreeError

FRAME_BYTES = 200
"""Upper bound of what the broker counts beside the key, value and headers of a record alone in its batch."""
BATCH_BYTES = 1_000_000
SMALLEST_BYTES = 1_000
CLIENT_BYTES = 1_000_000
"""librdkafka's own message.max.bytes."""
LARGEST_BYTES = 1_000_000_000 - FRAME_BYTES
"""The largest payload: librdkafka refuses a message.max.bytes above 10^9, which a topic may exceed."""
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_NEEDED_KEYS = ("max.message.bytes", "cleanup.policy")
_CONFIG_KEYS = (*_NEEDED_KEYS, "message.timestamp.type", _BEFORE, _AFTER)
_WITHOUT_TIME = (NO_TIMESTAMP, -1)
"""-1 is Kafka's own NO_TIMESTAMP, which brokers accept."""

log = logging.getLogger("acktree.bolt")

Headers = Iterable[tuple[str, bytes | str | None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """``settings`` for the producer, and the limits of topics that the producer itself does not enforce.

    ``by_topic`` is the largest payload in bytes that a topic accepts; records for ``compacted`` topics need a
    key; ``times`` is how many milliseconds a record's timestamp may be before and after the broker's clock.
    """

    settings: dict[str, str] = field(default_factory=dict)
    by_topic: dict[str, int] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    times: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def are_any(self) -> bool:
        """Whether a record without a timestamp may be refused at all."""
        return bool(self.by_topic or self.compacted)

    def check(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers | None,
        timestamp_ms: int = NO_TIMESTAMP,
    ) -> None:
        """Raise TooLarge, MissingKey or InvalidTimestamp for a record that its topic would reject."""
        if timestamp_ms not in _WITHOUT_TIME and topic in self.times:
            self._check_time(topic, timestamp_ms, world.wall_ms())
        if key is None and topic in self.compacted:
            raise MissingKey(
                f"a record without a key cannot be written to the compacted topic {topic}; give it one"
            )
        limit_bytes = self.by_topic.get(topic)
        if limit_bytes is None:
            return
        payload_bytes = _size(value) + _size(key) + payload_of(headers or ())
        if payload_bytes > limit_bytes:
            raise TooLarge(
                f"a record of {payload_bytes} bytes is too large for topic {topic}, whose "
                f"max.message.bytes allows {limit_bytes}"
            )

    def _check_time(self, topic: str, timestamp_ms: int, now_ms: int) -> None:
        before_ms, after_ms = self.times[topic]
        if not -before_ms <= timestamp_ms - now_ms <= after_ms:
            name, limit_ms = (_BEFORE, before_ms) if timestamp_ms < now_ms else (_AFTER, after_ms)
            raise InvalidTimestamp(
                f"a record with timestamp {timestamp_ms} ms cannot be written to topic {topic}, whose {name} "
                f"is {limit_ms}: the time is {now_ms} ms"
            )


NO_LIMITS = Limits()
"""Nothing but librdkafka's defaults."""


def read_limits(bootstrap: str, topics: Iterable[str], user: Settings) -> Limits:
    """Read the limits of topics from the broker; where that is forbidden, assume librdkafka's defaults.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    known, unknown = _describe(bootstrap, topics, user)
    if unknown:
        log.warning(
            "not all limits of %s are known: %s; a record that exceeds an unknown limit stops "
            "this process instead of failing its tuple; grant this principal DescribeConfigs",
            ", ".join(unknown),
            "; ".join(sorted(set(unknown.values()))),
            extra={"action": "limits_unknown"},
        )
    user_bytes = user.get("message.max.bytes")
    payload_bytes = dict.fromkeys(unknown, int(user_bytes or CLIENT_BYTES))
    for topic, config in known.items():
        if "max.message.bytes" in config:
            limit_bytes = int(config["max.message.bytes"]) - FRAME_BYTES
            payload_bytes[topic] = min(max(limit_bytes, 0), LARGEST_BYTES)
    largest_bytes = int(user_bytes or max(SMALLEST_BYTES, *payload_bytes.values()))
    settings = {
        "message.max.bytes": str(largest_bytes),
        "batch.size": str(max(1, min(BATCH_BYTES, *payload_bytes.values()))),
    }
    below = {topic: limit for topic, limit in payload_bytes.items() if limit < largest_bytes}
    compacted = frozenset(
        topic for topic, config in known.items() if "compact" in config.get("cleanup.policy", "")
    )
    times = {
        topic: (int(config[_BEFORE]), int(config[_AFTER]))
        for topic, config in known.items()
        if config.get("message.timestamp.type") == "CreateTime" and _BEFORE in config and _AFTER in config
    }
    return Limits(settings, below, compacted, times)


def _describe(
    bootstrap: str, topics: Iterable[str], user: Settings
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the settings of each topic, and why those of some topics are not, or not all, known."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    admin = make_admin(bootstrap, user)  # must outlive its futures
    answers = admin.describe_configs(resources, request_timeout=BROKER_TIMEOUT_S)
    known: dict[str, dict[str, str]] = {}
    unknown: dict[str, str] = {}
    for resource, future in answers.items():
        try:
            with clear_errors(bootstrap):
                config = world.wait_for(future, BROKER_TIMEOUT_S)
        except AcktreeError as error:
            if was_transient(error):
                raise
            unknown[resource.name] = str(error)
            continue
        found = {name: config[name].value for name in _CONFIG_KEYS if name in config}
        known[resource.name] = {name: value for name, value in found.items() if value is not None}
        if missing := [name for name in _NEEDED_KEYS if name not in known[resource.name]]:
            unknown[resource.name] = f"the broker does not report {' and '.join(missing)}"
    return known, unknown


def payload_of(headers: Headers) -> int:
    """Return the size of headers in bytes, names included."""
    return sum(_size(part) for header in headers for part in header)


def _size(part: object) -> int:
    if part is None:
        return 0
    assert isinstance(part, str | bytes), part
    return len(part.encode() if isinstance(part, str) else part)
