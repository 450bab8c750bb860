"""The driver of a bolt in Spark: plans batches over its topics and commits them when they are done.

Invariant: an offset is committed for the bolt's group only after the batch that holds it has ended, with its
tuples and acks in the log, and by the newest driver of the bolt. Offsets are committed again from time to
time, or Kafka would expire them.
"""

from collections.abc import Callable, Mapping

from confluent_kafka import TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_admin, make_consumer, retry_until_ready
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.log_reader import epoch_of
from acktree.core.kafka.settings import consumer_settings
from acktree.core.reports.stats import STATS_INTERVAL_S, Report
from acktree.core.topology.registry import Registry
from acktree.producers.ledger.logged_batch import PlannedBatch, Range
from acktree.producers.spouts.driver.group_offsets import committed_offsets
from acktree.producers.spouts.driver.reports.driver_metrics import serve_driver
from acktree.producers.spouts.driver.reports.reporter import Reporter
from acktree.producers.spouts.driver.sources.log_bounds import (
    DataLoss,
    check_ends,
    check_leaders,
    with_newer_leader,
)
from acktree.producers.spouts.driver.sources.source_watch import CHECK_INTERVAL_S
from acktree.producers.spouts.outside_commit import RENEW_INTERVAL_S, commit_offsets
from acktree.spark.shared.bolt_claim import BoltClaim
from acktree.spark.shared.bolt_topics import BoltTopics
from acktree.spark.shared.options import SourceOptions
from acktree.wire.state_records import UNKNOWN_EPOCH, LogEpoch


class BoltDriver:
    """Drives all partitions that one bolt reads, for one streaming query."""

    def __init__(self, options: SourceOptions, monotonic: Callable[[], float] = world.monotonic_s) -> None:
        """Connect, describe the topics, and take the bolt over from an earlier driver.

        Raises:
            AcktreeError: broker, topology, bolt or topic does not exist; the text says which.
        """
        self._options, self._bootstrap = options, options.bootstrap
        self._registry = Registry(options.bootstrap, options.topology, options.kafka)
        self._admin, self._monotonic = make_admin(options.bootstrap, options.kafka), monotonic
        self.topology = self._registry.history.latest
        self.topics = BoltTopics(self._admin, options, self.topology)
        self._group = self.topology.group_of(options.bolt)
        self._consumer = make_consumer(consumer_settings(options.bootstrap, self._group, options.kafka))
        self._claim = BoltClaim(options.bootstrap, options.topology, self._group, options.kafka)
        self._next: dict[int, int] = {}
        self._epochs: dict[int, LogEpoch] = {}
        """By slot whose log was read; it goes with the commits, and comes back with them."""
        self._committed: dict[int, int] = {}
        self._renew_at_s, self._check_at_s = self._monotonic() + RENEW_INTERVAL_S, 0.0
        self._reporter = Reporter(options)
        self._executed, self._next_report_s = 0, 0.0
        self._turns = 0
        self._instance = f"{options.bolt}-{world.random_bits(32):08x}"
        self._bolt = options.bolt
        self._metrics = serve_driver(options, lambda: self._reporter.latest)

    @property
    def claim(self) -> str:
        """The name that the tasks which this driver plans must find."""
        return self._claim.name

    @property
    def is_open(self) -> bool:
        return bool(self._next)

    def open(self, logged: PlannedBatch | None) -> None:
        """Start behind the logged batch or at the group's offset, else where the options say.

        The group's offset is ahead where a worker in Python has executed the bolt since that batch.
        Where the group has no offset, the one below which all is done is committed: an acker takes what is
        not committed for tuples that wait.
        """
        ranges = {(r.topic, r.partition): r for r in logged.ranges} if logged else {}
        committed = self._known_to_group()
        known = committed | {place: max(each.end, committed.get(place, 0)) for place, each in ranges.items()}
        new = [s for s in self.topics.partitions if (s.topic, s.partition) not in known]
        found = self.topics.log_starts(new) if known else self.topics.starting_offsets(new)
        starts = self.topics.whole(found, new)
        for source in self.topics.partitions:
            self._next[source.slot] = known.get((source.topic, source.partition), starts.get(source.slot, 0))
        self._check_at_s = self._monotonic() + CHECK_INTERVAL_S
        self._go_back_to_ends()
        begun = dict(self._next)
        for slot, topic, partition, _ in self.topics.partitions:
            if (topic, partition) in committed:
                del begun[slot]
            elif (topic, partition) in ranges:
                begun[slot] = min(begun[slot], ranges[topic, partition].start)
        if begun:
            self._commit(begun)

    def _known_to_group(self) -> dict[tuple[str, int], int]:
        """Return what the group has committed, and keep the leader epochs that are known by it."""
        slots = {(source.topic, source.partition): source.slot for source in self.topics.partitions}
        places = [TopicPartition(*place) for place in slots]
        with clear_errors(self._bootstrap):
            found = retry_until_ready(lambda: committed_offsets(self._consumer, places))
        for place in found:
            self._epochs.setdefault(slots[place.topic, place.partition], epoch_of(place))
        return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

    def _add_partitions(self) -> None:
        """Add new partitions, from the group's offset, else from their beginning.

        Raises:
            MissingTopic: a topic is gone. DataLoss: it was recreated, and failOnDataLoss is true.
        """
        topics = BoltTopics(self._admin, self._options, self.topology, self.topics.partitions)
        if topics.recreated and self._options.fail_on_data_loss:
            raise DataLoss(
                f"topic {topics.recreated[0]!r} was deleted and recreated since {self._bolt} read it: "
                "records of the old one that were not read are lost. To continue, start with "
                "failOnDataLoss=false; to start elsewhere, use a new checkpoint and set the group's offset "
                "with kafka-consumer-groups"
            )
        added = [source for source in topics.partitions if source.slot not in self._next]
        if added:
            starts = topics.whole(topics.log_starts(added), added)
            self.topics = topics
            known = self._known_to_group()
            for slot, topic, partition, _ in added:
                self._next[slot] = known.get((topic, partition), starts[slot])

    def position(self) -> PlannedBatch:
        """Return an empty batch with the position of every partition."""
        return self._batch(self._next)

    def _batch(self, ends: Mapping[int, int]) -> PlannedBatch:
        ranges = [
            Range(s.topic, s.partition, s.slot, 0, self._next[s.slot], ends[s.slot])
            for s in self.topics.partitions
        ]
        return PlannedBatch(self.topology.version, tuple(ranges))

    def written(self, batch: PlannedBatch) -> None:
        """Commit a batch that has ended; called again for the same batch it does nothing.

        Raises:
            NewerDriver: the bolt has another driver. BrokerUnreachable, BrokerRefused: see their docstrings.
        """
        slots = {(source.topic, source.partition): source.slot for source in self.topics.partitions}
        places = [((range_.topic, range_.partition), range_.end) for range_ in batch.ranges]
        ends = {slots[place]: end for place, end in places if place in slots}
        if ends != self._committed:
            self._commit(ends)
            self._executed += batch.records

    def _commit(self, ends: Mapping[int, int]) -> None:
        self._claim.check()
        sources = [source for source in self.topics.partitions if source.slot in ends]
        places = [
            TopicPartition(
                s.topic, s.partition, ends[s.slot], leader_epoch=self._epochs.get(s.slot, UNKNOWN_EPOCH).epoch
            )
            for s in sources
        ]
        commit_offsets(self._consumer, places, self._group, self._bootstrap)
        self._committed = dict(ends)

    def log_ends(self) -> dict[int, int]:
        """Return by slot the offset behind the last tuple that a read_committed reader may see.

        Raises:
            MissingTopic, VanishedPartition: a topic was deleted or recreated with fewer partitions.
        """
        return self.topics.whole(self.topics.log_ends(), self.topics.partitions)

    def _go_back_to_ends(self) -> None:
        """If a log ends, or has ended, before what was read of it, go on there, if the options allow it."""
        self._next |= check_ends(self.topics, self._options, self._next)
        self._next |= check_leaders(self.topics, self._options, self._next, self._epochs)

    def next_batch(self, ends: Mapping[int, int], limit: int | None) -> PlannedBatch | None:
        """Return the next batch up to ``ends`` by slot, None if there is nothing to read.

        Raises:
            DataLoss: a log ends before what was read of it, and failOnDataLoss is true.
        """
        is_beyond = any(start > ends.get(slot, start) for slot, start in self._next.items())
        if is_beyond or with_newer_leader(self.topics, self._epochs):
            self._go_back_to_ends()
        self._epochs |= self.topics.epochs
        wanted = {}
        slots = list(self._next)
        self._turns += 1
        for place in range(len(slots)):
            # A limit below the number of partitions goes to others in turn: none waits indefinitely.
            slot = slots[(place + self._turns) % len(slots)]
            start = self._next[slot]
            count = max(0, ends.get(slot, start) - start)
            if limit is not None:
                count = min(count, -(-limit // (len(slots) - place)))
                limit -= count
            wanted[slot] = start + count
        batch = self._batch(wanted)
        self._next = wanted
        return batch if batch.records else None

    def service(self, wait_s: float) -> None:
        """Pick up a newer topology version and new partitions; wait if there was nothing to read."""
        if self._registry.refresh():
            self.topology = self._registry.history.latest
            self._check_at_s = self._monotonic()
        if self._registry.refused:
            self._reporter.last_error.failed(self._registry.refused)
        if self._monotonic() >= self._check_at_s:
            self._add_partitions()
            self._check_at_s = self._monotonic() + CHECK_INTERVAL_S
        if self._monotonic() >= self._renew_at_s:
            self._claim.write()
            if self._committed:
                self._commit(self._committed)
            self._renew_at_s = self._monotonic() + RENEW_INTERVAL_S
        self._consumer.poll(wait_s)
        self._reporter.check()
        if world.monotonic_s() >= self._next_report_s:
            self._report()
            self._next_report_s = world.monotonic_s() + STATS_INTERVAL_S

    def _report(self) -> None:
        values = {"executed": self._executed, "acked": self._executed, "version": self.topology.version}
        report = Report("bolt", self._bolt, self._instance, world.wall_ms(), values)
        self._reporter.send(self.topology.stats_topic, [report])

    def progress(self, ends: Mapping[int, int]) -> dict[str, int]:
        """Return how far the bolt is: offsets not committed, records acked since the start."""
        lag = sum(max(0, end - self._committed.get(slot, 0)) for slot, end in ends.items())
        return {"lag": lag, "acked": self._executed}

    @property
    def has_caught_up(self) -> bool:
        """Return True: a bolt waits for no results."""
        return True

    def all_done(self, targets: Mapping[int, int]) -> bool:
        """Return whether everything below ``targets`` by slot is committed."""
        return all(self._committed.get(slot, 0) >= end for slot, end in targets.items())

    def commit_and_report(self) -> None:
        """Report once more; ``written`` has committed."""
        self._report()
        self._reporter.flush()

    def close(self) -> None:
        self._claim.close()
        self._consumer.close()
        self._registry.close()
        if self._metrics is not None:
            self._metrics.close()
