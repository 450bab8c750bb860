"""The driver side of a bolt in Spark: plans batches over its topics and commits them when they are done.

Invariant: an offset is committed for the bolt's group only after the batch that holds it has ended, with its
tuples and acks in the log.
"""

import time
import uuid
from collections.abc import Mapping

from confluent_kafka import OFFSET_INVALID, TopicPartition

from acktree.producers.outside_commit import commit_offsets
from acktree.schemas.clients import (
    BROKER_TIMEOUT_S,
    clear_errors,
    consumer_settings,
    make_admin,
    make_consumer,
)
from acktree.schemas.registry import Registry
from acktree.schemas.stats import STATS_INTERVAL_S, Report
from acktree.spark.batch import Batch, Range
from acktree.spark.driver_metrics import serve_driver
from acktree.spark.log_bounds import check_ends
from acktree.spark.options import SourceOptions
from acktree.spark.reporter import Reporter
from acktree.spark.source_topics import BoltTopics


class BoltDriver:
    """All partitions that one bolt reads, for one streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        """Connect and look at the topics.

        Raises:
            AcktreeError: broker, topology, bolt or topic is not there; the text says which.
        """
        self._options, self._bootstrap = options, options.bootstrap
        self._registry = Registry(options.bootstrap, options.topology, options.kafka)
        admin = make_admin(options.bootstrap, options.kafka)
        self.topology = self._registry.history.latest
        self.topics = BoltTopics(admin, options, self.topology)
        self._group = self.topology.group_of(options.bolt)
        self._consumer = make_consumer(consumer_settings(options.bootstrap, self._group, options.kafka))
        self._next: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._reporter = Reporter(options)
        self._executed, self._next_report_s = 0, 0.0
        self._instance = f"{options.bolt}-{uuid.uuid4().hex[:8]}"
        self._bolt = options.bolt
        self._metrics = serve_driver(options, lambda: self._reporter.latest)

    @property
    def is_open(self) -> bool:
        return bool(self._next)

    def open(self, logged: Batch | None) -> None:
        """Go on behind the logged batch, else at the group's offsets, else where the options say."""
        known = {(r.topic, r.partition): r.end for r in logged.ranges} if logged else {}
        places = [TopicPartition(s.topic, s.partition) for s in self.topics.partitions]
        with clear_errors(self._bootstrap):
            for place in self._consumer.committed(places, timeout=BROKER_TIMEOUT_S):
                if place.offset != OFFSET_INVALID:
                    known.setdefault((place.topic, place.partition), place.offset)
        new = [s for s in self.topics.partitions if (s.topic, s.partition) not in known]
        starts = self.topics.starting_offsets(new)
        for source in self.topics.partitions:
            self._next[source.slot] = known.get((source.topic, source.partition), starts.get(source.slot, 0))
        self._go_back_to_ends()

    def position(self) -> Batch:
        """Return an empty batch that says where every partition stands."""
        return self._batch(self._next)

    def _batch(self, ends: Mapping[int, int]) -> Batch:
        ranges = [
            Range(s.topic, s.partition, s.slot, 0, self._next[s.slot], ends[s.slot])
            for s in self.topics.partitions
        ]
        return Batch(self.topology.version, tuple(ranges))

    def written(self, batch: Batch) -> None:
        """Commit a batch that has ended; called again for the same batch it does nothing."""
        ends = {range_.slot: range_.end for range_ in batch.ranges}
        if ends != self._committed:
            places = [TopicPartition(r.topic, r.partition, r.end) for r in batch.ranges]
            commit_offsets(self._consumer, places, self._group, self._bootstrap)
            self._committed = ends
            self._executed += batch.records

    def log_ends(self) -> dict[int, int]:
        """Return by slot the offset behind the last tuple that a read_committed reader may see.

        Raises:
            MissingTopic, VanishedPartition: a topic was deleted, or created anew with fewer partitions.
        """
        return self.topics.log_ends()

    def _go_back_to_ends(self) -> None:
        """Where a log ends before what was read of it, go on at its end, if the options allow it."""
        self._next |= check_ends(self.topics, self._options, self._next)

    def next_batch(self, ends: Mapping[int, int], most: int | None) -> Batch | None:
        """Return the next batch up to ``ends`` by slot, None if there is nothing to read.

        Raises:
            DataLoss: a log ends before what was read of it, and failOnDataLoss is true.
        """
        if any(start > ends.get(slot, start) for slot, start in self._next.items()):
            self._go_back_to_ends()
        wanted = {}
        left = len(self._next)
        for slot, start in self._next.items():
            share = max(0, ends.get(slot, start) - start)
            if most is not None:
                share = min(share, most // left)
                most -= share
            left -= 1
            wanted[slot] = start + share
        batch = self._batch(wanted)
        self._next = wanted
        return batch if batch.records else None

    def service(self, wait_s: float) -> None:
        """Take in a newer topology version; wait where there was nothing to read."""
        if self._registry.refresh():
            self.topology = self._registry.history.latest
        self._consumer.poll(wait_s)
        self._reporter.check()
        if time.monotonic() >= self._next_report_s:
            self._report()
            self._next_report_s = time.monotonic() + STATS_INTERVAL_S

    def _report(self) -> None:
        values = {"executed": self._executed, "acked": self._executed, "version": self.topology.version}
        report = Report("bolt", self._bolt, self._instance, int(time.time() * 1000), values)
        self._reporter.send(self.topology.stats_topic, [report])

    def progress(self, ends: Mapping[int, int]) -> dict[str, int]:
        """Return how far the bolt is: offsets not committed, records acked since the start."""
        lag = sum(max(0, end - self._committed.get(slot, 0)) for slot, end in ends.items())
        return {"lag": lag, "acked": self._executed}

    def all_done(self, targets: Mapping[int, int]) -> bool:
        """Tell whether everything below ``targets`` by slot is committed."""
        return all(self._committed.get(slot, 0) >= end for slot, end in targets.items())

    def settle(self) -> None:
        """Report once more; ``written`` has committed."""
        self._report()
        self._reporter.settle()

    def close(self) -> None:
        self._consumer.close()
        self._registry.close()
        if self._metrics is not None:
            self._metrics.close()
