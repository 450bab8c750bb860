"""Which records each topic takes, so that one it never takes fails its tuple before it is sent.

Invariant: no batch of ours is larger than the smallest limit, because a broker refuses a batch as a whole and
does not say for which of its records. The limits are read once; one lowered later is found by the broker.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from acktree.producers.errors import InvalidTimestamp, MissingKey, TooLarge
from acktree.producers.native.columns import NO_TIMESTAMP
from acktree.schemas.clients import BROKER_TIMEOUT_S, Settings, make_admin

FRAME_BYTES = 200
"""At most so much the broker counts on top of a lone record's key, value and headers."""
BATCH_BYTES = 1_000_000
SMALLEST_BYTES = 1_000
CLIENT_BYTES = 1_000_000
"""librdkafka's own message.max.bytes."""
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_ASKED = ("max.message.bytes", "cleanup.policy", "message.timestamp.type", _BEFORE, _AFTER)
_WITHOUT_TIME = (NO_TIMESTAMP, -1)
"""-1 is Kafka's own word for it, which brokers take."""

log = logging.getLogger("acktree.bolt")

Headers = Iterable[tuple[str, bytes | str | None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """``settings`` for the producer, and what topics ask for where the producer does not see to it.

    ``by_topic`` is the payload in bytes that a topic takes; records for ``compacted`` topics need a key;
    ``times`` is how many milliseconds a record's time may be before and after the broker's.
    """

    settings: dict[str, str] = field(default_factory=dict)
    by_topic: dict[str, int] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    times: dict[str, tuple[int, int]] = field(default_factory=dict)

    def fit(self, topic: str, most_bytes: int, *, all_keyed: bool) -> bool:
        """Tell whether a topic would take all records, the largest one's payload given."""
        is_small = most_bytes <= self.by_topic.get(topic, most_bytes)
        return is_small and (all_keyed or topic not in self.compacted)

    def check(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers | None,
        timestamp_ms: int = NO_TIMESTAMP,
    ) -> None:
        """Raise TooLarge, MissingKey or InvalidTimestamp for a record that its topic would not take."""
        if timestamp_ms not in _WITHOUT_TIME and topic in self.times:
            self._check_time(topic, timestamp_ms, int(time.time() * 1000))
        if key is None and topic in self.compacted:
            raise MissingKey(
                f"a record without a key is refused by topic {topic}, which is compacted; give it one"
            )
        most_bytes = self.by_topic.get(topic)
        if most_bytes is None:
            return
        payload_bytes = _size(value) + _size(key) + payload_of(headers or ())
        if payload_bytes > most_bytes:
            raise TooLarge(
                f"a record of {payload_bytes} bytes is too large for topic {topic}, which takes {most_bytes} "
                "by its max.message.bytes"
            )

    def _check_time(self, topic: str, timestamp_ms: int, now_ms: int) -> None:
        before_ms, after_ms = self.times[topic]
        if not -before_ms <= timestamp_ms - now_ms <= after_ms:
            name, limit_ms = (_BEFORE, before_ms) if timestamp_ms < now_ms else (_AFTER, after_ms)
            raise InvalidTimestamp(
                f"a record of the time {timestamp_ms} ms, now {now_ms}, is refused by topic {topic}, whose "
                f"{name} is {limit_ms}"
            )


NO_LIMITS = Limits()
"""Nothing but librdkafka's defaults."""


def read_limits(bootstrap: str, topics: Iterable[str], user: Settings) -> Limits:
    """Ask the broker for the limits of topics; where it may not say, librdkafka's defaults hold.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    known, unknown = _ask(bootstrap, topics, user)
    if unknown:
        log.warning(
            "the limits of %s are unknown: %s; a record that they never take will end this process, not fail "
            "its tuple; the right to read them is DescribeConfigs",
            ", ".join(unknown),
            "; ".join(sorted(set(unknown.values()))),
            extra={"action": "limits_unknown"},
        )
    user_bytes = user.get("message.max.bytes")
    payload_bytes = dict.fromkeys(unknown, int(user_bytes or CLIENT_BYTES))
    for topic, config in known.items():
        payload_bytes[topic] = max(int(config["max.message.bytes"]) - FRAME_BYTES, 0)
    largest_bytes = int(user_bytes or max(SMALLEST_BYTES, *payload_bytes.values()))
    settings = {
        "message.max.bytes": str(largest_bytes),
        "batch.size": str(max(1, min(BATCH_BYTES, *payload_bytes.values()))),
    }
    below = {topic: most for topic, most in payload_bytes.items() if most < largest_bytes}
    compacted = frozenset(topic for topic, config in known.items() if "compact" in config["cleanup.policy"])
    times = {
        topic: (int(config[_BEFORE]), int(config[_AFTER]))
        for topic, config in known.items()
        if config["message.timestamp.type"] == "CreateTime" and _BEFORE in config and _AFTER in config
    }
    return Limits(settings, below, compacted, times)


def _ask(
    bootstrap: str, topics: Iterable[str], user: Settings
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the settings of each topic, and for the others why they are not known."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    admin = make_admin(bootstrap, user)  # must outlive its answers
    answers = admin.describe_configs(resources, request_timeout=BROKER_TIMEOUT_S)
    known: dict[str, dict[str, str]] = {}
    unknown: dict[str, str] = {}
    for resource, future in answers.items():
        try:
            told = future.result(BROKER_TIMEOUT_S)
            known[resource.name] = {name: told[name].value for name in _ASKED if name in told}
        except (KafkaException, TimeoutError) as error:
            unknown[resource.name] = str(error)
    return known, unknown


def payload_of(headers: Headers) -> int:
    """Return how many bytes headers add to a record's payload."""
    return sum(_size(part) for header in headers for part in header)


def _size(part: object) -> int:
    if part is None:
        return 0
    assert isinstance(part, str | bytes), part
    return len(part.encode() if isinstance(part, str) else part)
