"""Manages an acker's group membership: assignor and session timeout, classic protocol and KIP-848.

Invariant: the same partition of both control topics is assigned to the same acker. With KIP-848 the session
timeout belongs to the group, not to a client; a value set by an operator stays, and a broker that refuses the
acker's value does not stop it. With KIP-848 a dead member keeps its ``group.instance.id`` until its session
ends: its successor waits.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from acktree.core import world
from acktree.core.errors import RefusedSetting
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_consumer
from acktree.core.kafka.errors import reason_of
from acktree.core.kafka.log_reader import LogRange, LogReader, reader_settings
from acktree.core.kafka.settings import Settings, is_kip_848
from acktree.wire.errors import AcktreeError

SESSION_TIMEOUT_MS = 6000
HEARTBEAT_INTERVAL_MS = SESSION_TIMEOUT_MS // 4
RELEASE_PAUSE_S = 1.0

# After a fatal error a consumer never returns anything again. Its cause is available as text only.
_IN_USE = KafkaError(KafkaError.UNRELEASED_INSTANCE_ID).str()

OnRebalance = Callable[[LogReader, list[TopicPartition]], None]

log = logging.getLogger("acktree.acker")


def group_settings(bootstrap: str, group: str, user: Settings) -> dict[str, object]:
    """Return the settings of the group's consumer, for the classic protocol or KIP-848 as the user says.

    Raises:
        RefusedSetting: an assignor that does not keep both control topics' partitions together.
    """
    is_classic = not is_kip_848(user)
    assignor = "partition.assignment.strategy" if is_classic else "group.remote.assignor"
    if user.get(assignor, "range") != "range":
        raise RefusedSetting(
            f"{assignor}={user[assignor]} is refused: only range assigns the same partition of both control "
            "topics to the same acker; leave it at range"
        )
    ours: dict[str, object] = {assignor: "range", "topic.metadata.refresh.interval.ms": 2000}
    if is_classic:
        ours |= {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS}
    return reader_settings(bootstrap, group, user, **{k.replace(".", "_"): v for k, v in ours.items()})


def shorten_session(admin: AdminClient, group: str, session_ms: int = SESSION_TIMEOUT_MS) -> None:
    """Set the group's session timeout and heartbeat interval, unless an operator has.

    A broker accepts only what its group.consumer.min.* settings allow, by default nothing below 45 s. If it
    refuses, a member that died, or a static one that left, keeps its partitions for that long, and a
    warning says so.
    """
    wanted = {
        "consumer.session.timeout.ms": session_ms,
        "consumer.heartbeat.interval.ms": min(HEARTBEAT_INTERVAL_MS, session_ms // 4),
    }
    try:
        found = _ask(admin.describe_configs([ConfigResource(ConfigResource.Type.GROUP, group)]))
        if all(found[key].is_default for key in wanted):
            changes = [
                ConfigEntry(key, str(value), incremental_operation=AlterConfigOpType.SET)
                for key, value in wanted.items()
            ]
            resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=changes)
            _ask(admin.incremental_alter_configs([resource]))
    except (KafkaException, KeyError, TimeoutError) as reason:
        log.warning(
            "action=session_not_shortened group=%s reason=%s: a dead acker is noticed after the broker's "
            "session timeout, 45 s by default; set group.consumer.min.session.timeout.ms=%d and "
            "group.consumer.min.heartbeat.interval.ms=%d on the brokers",
            group,
            str(reason) or "no answer in time",
            *wanted.values(),
        )


class Member:
    """The group's reader, recreated for as long as another member holds its ``group.instance.id``."""

    def __init__(
        self, settings: Mapping[str, object], user: Settings, topics: Sequence[str], **callbacks: OnRebalance
    ) -> None:
        """Create the consumer; ``callbacks`` are those of Consumer.subscribe, but get the reader."""
        self._settings, self._user = settings, user
        self._topics, self._callbacks = list(topics), callbacks
        self._is_id_in_use = False
        self.reader = self._make_reader()

    def _make_reader(self) -> LogReader:
        bootstrap, group = str(self._settings["bootstrap.servers"]), str(self._settings["group.id"])
        return LogReader(make_consumer(self._settings), bootstrap, group, self._user, is_member=True)

    def join(self) -> None:
        """Join the group."""
        callbacks = {name: partial(self._call, callback) for name, callback in self._callbacks.items()}
        self.reader.consumer.subscribe(self._topics, **callbacks)

    def _call(self, callback: OnRebalance, _: Consumer, places: list[TopicPartition]) -> None:
        callback(self.reader, places)

    def read(self, max_records: int, wait_s: float) -> list[LogRange]:
        """Return and raise as ``LogReader.read``; nothing while the instance id is in use."""
        try:
            return self.reader.read(max_records, wait_s)
        except AcktreeError as error:
            reason = reason_of(error)
            if reason is None or reason.code() != KafkaError._FATAL or _IN_USE not in reason.str():
                raise
            self._is_id_in_use = True
            return []

    def ensure_joined(self) -> bool:
        """Return True if the consumer can keep running; else recreate it, join again and return False."""
        if not self._is_id_in_use:
            return True
        log.warning(
            "action=wait_for_instance_id id=%s: the member with this id has died, and its session has not "
            "expired yet; if it is alive, give each acker its own id",
            self._settings["group.instance.id"],
        )
        self.reader.consumer.close()
        world.sleep(RELEASE_PAUSE_S)
        self._is_id_in_use = False
        self.reader = self._make_reader()
        self.join()
        return False


def _ask(answers: Mapping[ConfigResource, Future[Any]]) -> Any:
    """Return the answer for the single resource requested."""
    (future,) = answers.values()
    return world.wait_for(future, BROKER_TIMEOUT_S)
