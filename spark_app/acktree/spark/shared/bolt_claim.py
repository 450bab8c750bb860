"""The claim of a bolt's driver: no other driver of the bolt has an ack committed while it holds.

Two drivers would ack each tuple twice, and no tree would ever be done. The claim is a random name, kept as
the metadata of an offset of the bolt's stage group. A driver writes it with a transactional producer, so a
new driver fences the one before; then it fences the tasks of the one before.
Invariant: a task commits acks only if it has found its driver's claim after its own transactional id was
fenced last. A missing claim proves nothing, and is refused.
"""

from collections.abc import Callable

from confluent_kafka import KafkaException, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_producer, metadata_of, retry_until_ready
from acktree.core.kafka.errors import clear_errors, is_producer_lost, may_be_fenced
from acktree.core.kafka.settings import Settings
from acktree.core.topology.file import registry_topic
from acktree.producers.kafka.fencing import fencing_settings
from acktree.spark.shared.batch_commits import BatchCommits
from acktree.wire.errors import AcktreeError

CLAIM_TIMEOUT_MS = 10_000


class NewerDriver(AcktreeError):
    """A newer driver has taken over this bolt; this one must stop."""


class BoltClaim:
    """The claim of one driver of a bolt."""

    def __init__(self, bootstrap: str, topology: str, group: str, user: Settings) -> None:
        """Fence the driver before, and write the claim.

        Raises:
            BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
        """
        self._bootstrap, self._topology = bootstrap, topology
        self._commits = BatchCommits(bootstrap, user, group)
        self.name = f"{world.random_bits(64):016x}"
        ours = {"transactional_id": f"{self._commits.group}-driver"}
        settings = fencing_settings(bootstrap, user, **ours, transaction_timeout_ms=CLAIM_TIMEOUT_MS)
        self._producer = make_producer(settings)
        with clear_errors(bootstrap):
            retry_until_ready(lambda: self._producer.init_transactions(BROKER_TIMEOUT_S))
        self.write()

    def write(self) -> None:
        """Write the claim, again so that Kafka does not expire it.

        Raises:
            NewerDriver: this driver was fenced. BrokerUnreachable, BrokerRefused: see their docstrings.
        """
        group = self._commits.consumer.consumer_group_metadata()
        record = claim_record(self._topology, self.name)
        try:
            self._producer.begin_transaction()
            self._retry(lambda: self._producer.send_offsets_to_transaction([record], group, BROKER_TIMEOUT_S))
            self._retry(lambda: self._producer.commit_transaction(BROKER_TIMEOUT_S))
        except KafkaException as error:
            if is_producer_lost(error.args[0]) or (may_be_fenced(error.args[0]) and self._is_fenced()):
                raise newer_driver(self._commits.group) from error
            with clear_errors(self._bootstrap):
                raise

    def _is_fenced(self) -> bool:
        """Abort the transaction; return whether that says that a newer driver has fenced this one."""
        try:
            self._producer.abort_transaction(BROKER_TIMEOUT_S)
        except KafkaException as error:
            return is_producer_lost(error.args[0]) or may_be_fenced(error.args[0])
        return False

    def _retry(self, call: Callable[[], object]) -> None:
        """Call again what the client says may be called again."""
        until_s = world.monotonic_s() + 2 * BROKER_TIMEOUT_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or world.monotonic_s() > until_s:
                    raise

    def check(self) -> None:
        """Raise NewerDriver if the claim is not this driver's any more."""
        with clear_errors(self._bootstrap):
            check_claim(self._commits, self._topology, self.name)

    def close(self) -> None:
        """Close the connections."""
        self._commits.consumer.close()


def claim_record(topology: str, claim: str) -> TopicPartition:
    """Return the offset that holds the claim of a bolt's driver."""
    return TopicPartition(registry_topic(topology), 0, 0, metadata=claim)


def check_claim(commits: BatchCommits, topology: str, claim: str) -> None:
    """Check that a claim is the newest one of the bolt.

    Raises:
        NewerDriver: it is not. KafkaException: the broker does not answer.
    """
    (found,) = commits.newest([claim_record(topology, claim)])
    if metadata_of(found) != claim:
        raise newer_driver(commits.group)


def newer_driver(group: str) -> NewerDriver:
    """Return what to raise in a driver or task that has lost the bolt."""
    return NewerDriver(
        f"another Spark application has started this bolt, or group {group} was deleted: this application "
        "can no longer ack. Run only one application per bolt"
    )
