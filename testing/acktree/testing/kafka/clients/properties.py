"""Checks the names of client properties: a simulated client refuses those that librdkafka refuses."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

_UNKNOWN = "No such configuration property"
_known: set[tuple[type, str]] = set()


def refuse_unknown(
    kind: type[Consumer] | type[Producer] | type[AdminClient], settings: Mapping[str, Any]
) -> None:
    """Raise KafkaException for a property that clients of this kind do not have; values are not looked at."""
    needed = {"group.id": "g"} if kind is Consumer else {}
    for name, value in settings.items():
        if (kind, name) not in _known:
            try:
                kind({"log_level": 0, **needed, name: value})
            except KafkaException as error:
                if _UNKNOWN in str(error):
                    raise
            _known.add((kind, name))
