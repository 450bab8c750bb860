"""Keeps settings of a broker and its groups, and checks changes; those of topics are with the logs."""

from collections.abc import Mapping

from confluent_kafka import KafkaError
from confluent_kafka.admin import AlterConfigOpType, ConfigResource

from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.virtual.errors import NotSimulated

GROUP_DEFAULTS = {"consumer.session.timeout.ms": "45000", "consumer.heartbeat.interval.ms": "5000"}
BROKER_SETTINGS = {
    "group.consumer.max.heartbeat.interval.ms": "15000",
    "group.consumer.max.session.timeout.ms": "60000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "6000",
    "offset.metadata.max.bytes": "4096",
    "offsets.retention.minutes": "10080",
}
"""Kafka's defaults, except for a session timeout of 6 s, which ``acktree broker`` also allows."""


def changes_of(resource: ConfigResource, defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a request changes; what it takes back gets its default."""
    return {
        entry.name: (
            defaults[entry.name]
            if entry.incremental_operation is AlterConfigOpType.DELETE
            else str(entry.value)
        )
        for entry in resource.incremental_configs
    }


def check_simulated(resource: ConfigResource) -> None:
    """Raise NotSimulated for a change that no simulated broker applies."""
    for entry in resource.incremental_configs:
        if entry.incremental_operation not in (AlterConfigOpType.SET, AlterConfigOpType.DELETE):
            raise NotSimulated(f"a change of {entry.name} is simulated for AlterConfigOpType.SET and DELETE")
        if resource.restype is ConfigResource.Type.GROUP and entry.name not in GROUP_DEFAULTS:
            raise NotSimulated(f"{entry.name} of a group is not simulated; test this against a real Kafka")


def checked_changes(resource: ConfigResource, present: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a group that a request changes.

    Raises:
        Refused: the broker does not allow what they would be, in the order of its checks.
    """
    changes = changes_of(resource, GROUP_DEFAULTS)
    config = {**GROUP_DEFAULTS, **present, **changes}
    for name in ("heartbeat.interval.ms", "session.timeout.ms"):
        value = int(config[f"consumer.{name}"])
        for bound, comparison in (("min", "greater"), ("max", "less")):
            limit = int(BROKER_SETTINGS[f"group.consumer.{bound}.{name}"])
            if value < limit if bound == "min" else value > limit:
                raise Refused(
                    KafkaError.INVALID_CONFIG,
                    f"consumer.{name} must be {comparison} than or equal to group.consumer.{bound}.{name}",
                )
    if int(config["consumer.session.timeout.ms"]) <= int(config["consumer.heartbeat.interval.ms"]):
        text = "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
        raise Refused(KafkaError.INVALID_CONFIG, text)
    return changes
