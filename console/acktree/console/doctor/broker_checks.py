"""Checks what acktree relies on of any broker, with the doctor's own topics.

Invariant: a check writes to the doctor's own topics and groups alone.
"""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from acktree.console.doctor import conclusions
from acktree.console.doctor.answers import Answer, Conclusion, worst
from acktree.console.doctor.checks import Check, Unknown
from acktree.console.doctor.scratch import PREFIX, REQUEST_S, Scratch
from acktree.core import world
from acktree.core.kafka.clients import listed_offset, metadata_of
from acktree.core.kafka.errors import is_forbidden, is_missing, is_producer_lost
from acktree.core.topology.file import Topology
from acktree.core.topology.plan import control_config
from acktree.producers.kafka.fencing import TRANSACTION_TIMEOUT_MS as WORKER_TRANSACTION_MS
from acktree.producers.kafka.record_limits import FRAME_BYTES

TRANSACTION_MS = 300_000
"""The longest transaction that acktree asks for: that of a Spark task."""
SESSION_MS = 6_000
"""The session timeout that ackers ask for."""
_KINDS = {TIMESTAMP_LOG_APPEND_TIME: conclusions.APPEND_TIME, TIMESTAMP_CREATE_TIME: "CreateTime"}
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_TOPICS = f"Create, Describe, DescribeConfigs, Read, Write and Delete on topics {PREFIX}*"
_GROUPS = f"Read on groups {PREFIX}*"
_TRANSACTIONS = f"Write on transactional ids {PREFIX}*"


class BrokerChecks:
    """The checks of one broker, made with one scratch; ``topology`` gives the settings of its topics."""

    def __init__(self, scratch: Scratch, topology: Topology) -> None:
        self.scratch, self._topology = scratch, topology
        self._append_times: tuple[int, int, int] | None = None

    def all(self) -> list[Check]:
        """Return the checks in the order in which they have to be run."""
        factor = "perhaps replication_factor in the topology file, with --topology"
        control = "message.timestamp.type=LogAppendTime on control topics"
        compact = "cleanup.policy=compact has to be allowed"
        session = f"group.min.session.timeout.ms of at most {SESSION_MS} on the brokers"
        limit = (
            f"transaction.max.timeout.ms={TRANSACTION_MS} on the brokers, or a lower transaction.timeout.ms"
        )
        newer = "nothing: acktree uses it only with -X group.protocol=consumer"
        size = f"message.max.bytes and max.message.bytes={conclusions.RECORD_BYTES} or more"
        return [
            Check("topic", f"create a topic {PREFIX}…", self._topic, factor, _TOPICS),
            Check("topic id", "tell recreated topics apart", self._topic_id, "", _TOPICS),
            Check("append time", "a topic with LogAppendTime", self._append_time, control, _TOPICS),
            Check("clock", "this machine's clock against the broker's", self._clock),
            Check("compaction", "a topic with cleanup.policy=compact", self._compaction, compact, _TOPICS),
            Check("transactions", "commit and abort; offsets", self._transactions, limit, _TRANSACTIONS),
            Check(
                "fencing", "replace a transactional producer", self._fencing, "another broker", _TRANSACTIONS
            ),
            Check(
                "commit metadata",
                f"{conclusions.METADATA_CHARS:,} characters beside an offset",
                self._metadata,
                "offset.metadata.max.bytes=4096 on the brokers",
                _GROUPS,
            ),
            Check("log ends", "a partition's end, an offset by time", self._log_ends, "", _TOPICS),
            Check("range", "a group with the assignor range", self._range, session, _GROUPS),
            Check(
                "new protocol",
                "a group with group.protocol=consumer",
                self._new_protocol,
                newer,
                _GROUPS,
                Answer.SLOWER,
            ),
            Check("record size", f"{conclusions.RECORD_BYTES:,} bytes", self._size, size, _TOPICS),
            Check("replication", "what new topics get", self._replication, "", _TOPICS),
            Check("internal topics", "replicas of offsets, transactions", self._internal),
        ]

    def _topic(self) -> Conclusion:
        return Conclusion(Answer.WORKS, self.scratch.create_topic())

    def _topic_id(self) -> Conclusion:
        found = self.scratch.describe(self.scratch.topic).topic_id
        return conclusions.of_topic_id(None if found is None else str(found))

    def _append_time(self) -> Conclusion:
        topic = self.scratch.create("-control", control_config(self._topology))
        producer = self.scratch.producer(delivery_report_only_error=False)
        self.scratch.write(topic, b"first", producer)  # connects: the second one is timed
        sent_ms = world.wall_ms()
        self.scratch.write(topic, b"second", producer)
        acked_ms = world.wall_ms()
        messages = self.scratch.read_to(topic, b"second")
        if not messages or messages[-1].value() != b"second":
            return conclusions.of_timestamp(None)
        kind, append_ms = messages[-1].timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._append_times = sent_ms, append_ms, acked_ms
        return conclusions.of_timestamp(_KINDS.get(kind, "no timestamp"))

    def _clock(self) -> Conclusion:
        if self._append_times is None:
            raise Unknown(Answer.NO_ANSWER, "there is no append time to compare with")
        sent_ms, append_ms, acked_ms = self._append_times
        return conclusions.of_skew(sent_ms, append_ms, acked_ms, self._topology.message_timeout_s)

    def _compaction(self) -> Conclusion:
        topic = self.scratch.create("-registry", {"cleanup.policy": "compact"})
        return conclusions.of_cleanup(self.scratch.settings(topic).get("cleanup.policy"))

    def _transactions(self) -> Conclusion:
        topic, sent_offset = self.scratch.topic, 7
        producer = self._transactional("stage", TRANSACTION_MS)
        producer.begin_transaction()
        producer.produce(topic, value=b"aborted", partition=0)
        producer.flush(REQUEST_S)
        producer.abort_transaction(REQUEST_S)
        producer.begin_transaction()
        producer.produce(topic, value=b"committed", partition=0)
        with self.scratch.consumer("-stage") as consumer:
            offsets = [TopicPartition(topic, 0, sent_offset, "of the doctor")]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), REQUEST_S)
            producer.commit_transaction(REQUEST_S)
            (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=REQUEST_S)
        if found.error is not None:
            raise KafkaException(found.error)
        values = {message.value() for message in self.scratch.read_to(topic, b"committed")}
        offset = found.offset if found.offset >= 0 else None
        seen = conclusions.Seen(b"committed" in values, b"aborted" in values, offset)
        return conclusions.of_transaction(seen, sent_offset)

    def _transactional(self, role: str, timeout_ms: int) -> Any:
        producer = self.scratch.producer(
            transactional_id=f"{self.scratch.name}-{role}", transaction_timeout_ms=timeout_ms
        )
        producer.init_transactions(REQUEST_S)
        return producer

    def _fencing(self) -> Conclusion:
        topic = self.scratch.topic
        old = self._transactional("bolt", WORKER_TRANSACTION_MS)
        old.begin_transaction()
        old.produce(topic, value=b"of the old one", partition=0)
        old.flush(REQUEST_S)
        self._transactional("bolt", WORKER_TRANSACTION_MS)
        try:
            old.commit_transaction(REQUEST_S)
        except KafkaException as error:
            if not is_producer_lost(error.args[0]):
                raise
            return conclusions.of_fencing(wrote=False)
        return conclusions.of_fencing(wrote=True)

    def _metadata(self) -> Conclusion:
        sent = "0123456789" * (conclusions.METADATA_CHARS // 10)
        place = TopicPartition(self.scratch.topic, 0, 1, sent)
        with self.scratch.consumer() as consumer:
            (answer,) = consumer.commit(offsets=[place], asynchronous=False)
            if answer.error is not None:
                raise KafkaException(answer.error)
            (found,) = consumer.committed([TopicPartition(place.topic, 0)], timeout=REQUEST_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return conclusions.of_metadata(sent, metadata_of(found) if found.offset >= 0 else None)

    def _log_ends(self) -> Conclusion:
        topic = self.scratch.topic
        self.scratch.write(topic, b"one more")
        place = TopicPartition(topic, 0)
        ends = [
            listed_offset(future, REQUEST_S)
            for spec in (OffsetSpec.latest(), OffsetSpec.for_timestamp(1))  # type: ignore[no-untyped-call]
            for future in self.scratch.admin.list_offsets({place: spec}, request_timeout=REQUEST_S).values()
        ]
        if ends[0] > 0 and ends[1] >= 0:
            return Conclusion(Answer.WORKS, f"end offset {ends[0]}, first offset {ends[1]}")
        return Conclusion(Answer.NO_ANSWER, f"end offset {ends[0]}, offset by time {ends[1]}")

    def _range(self) -> Conclusion:
        settings = {"partition_assignment_strategy": "range", "session_timeout_ms": SESSION_MS}
        classic = {key: value for key, value in self.scratch.user.items() if not key.startswith("group.")}
        return self._join("-range", classic, {**settings, "heartbeat_interval_ms": SESSION_MS // 4})

    def _new_protocol(self) -> Conclusion:
        ours = ("group.", "session.", "heartbeat.", "partition.assignment.")
        user = {key: value for key, value in self.scratch.user.items() if not key.startswith(ours)}
        return self._join("-new", user, {"group_protocol": "consumer", "group_remote_assignor": "range"})

    def _join(self, group: str, user: Mapping[str, str], ours: Mapping[str, Any]) -> Conclusion:
        topic = self.scratch.topic
        with self.scratch.consumer(group, user, **ours) as consumer:
            if self.scratch.wait_for_assignment(consumer, topic):
                return Conclusion(Answer.WORKS, "the group assigned its partition")
        return Conclusion(Answer.NO_ANSWER, f"the group assigned nothing within {2 * REQUEST_S:g} s")

    def _size(self) -> Conclusion:
        topic = self.scratch.topic
        self.scratch.write(topic, b"x" * (conclusions.RECORD_BYTES - FRAME_BYTES))
        try:
            found = self.scratch.settings(topic).get("max.message.bytes")
        except KafkaException as error:
            if not is_forbidden(error.args[0]):
                raise
            found = None
        return conclusions.of_size(found or None)

    def _replication(self) -> Conclusion:
        topic = self.scratch.topic
        cluster = world.wait_for(self.scratch.admin.describe_cluster(request_timeout=REQUEST_S), REQUEST_S)
        in_sync = self._topology.min_insync_replicas
        if in_sync is None:
            in_sync = conclusions.number(self.scratch.settings(topic).get("min.insync.replicas"))
        return conclusions.of_replication(len(cluster.nodes), self.copies_of(topic), in_sync)

    def copies_of(self, topic: str) -> int | None:
        """Return how many replicas the partition with the fewest of them has."""
        about = self.scratch.describe(topic)
        return min((len(partition.replicas) for partition in about.partitions), default=None)

    def _internal(self) -> Conclusion:
        """They were made by the checks before, if not long ago; some services hide them."""
        parts = []
        for topic in _INTERNAL:
            try:
                in_sync = conclusions.number(self.scratch.settings(topic).get("min.insync.replicas"))
                answer, found, _ = conclusions.of_replication(None, self.copies_of(topic), in_sync)
            except KafkaException as error:
                if not (is_missing(error.args[0]) or is_forbidden(error.args[0])):
                    raise
                hidden = Answer.FORBIDDEN if is_forbidden(error.args[0]) else Answer.NO_ANSWER
                parts.append(Conclusion(hidden, f"{topic} is not shown"))
                continue
            name = "offsets.topic" if topic == _INTERNAL[0] else "transaction.state.log"
            advice = f"{name}.replication.factor=3" if answer is Answer.AT_RISK else ""
            parts.append(Conclusion(answer, f"{topic}: {found}", advice))
        return worst(parts)
