"""The loop of `acktree export-traces`: follows results, reads trees that failed or were slow, sends them.

Invariant: an offset of a result topic is committed only after the receiver has taken, or has refused for
good, every tree that is due up to it; omitted trees are counted. A tree that is sent twice has the same ids.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from acktree.console.traces.finished import AckedRoots, FinishedRoot, RecentInits, Selection, read_result
from acktree.console.traces.otlp import OtlpSender, Sent
from acktree.console.traces.spans import Span, make_spans, other_roots
from acktree.console.traces.trees import ReadTree, read_sources, read_trees
from acktree.console.view.cluster import Cluster, OffsetRange, Place, what_is_unread
from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_consumer
from acktree.core.kafka.errors import (
    as_clear_error,
    clear_errors,
    is_membership_lost,
    is_transient,
    was_transient,
)
from acktree.core.kafka.log_reader import Found, LogRange, LogReader, reader_settings
from acktree.core.kafka.settings import Settings
from acktree.core.reports.liveness import Liveness
from acktree.wire.codec import decode_ack_init
from acktree.wire.errors import AcktreeError, MalformedRecord

GROUP = "traces"
KEPT_ROOTS = 100_000
"""Of how many exported trees it is known that they are: an acker that folds again sends results again."""
MAX_TREES = 200
"""How many trees share one reading of the log, and a request."""
MAX_WAITING = 1_000
"""At this many failed trees, or result records with acked roots, reading stops until they are exported."""
BATCH = 1_000
SETTLE_S = 2.0
"""How long after its result a tree is read: other branches may still have had messages on the way."""
READ_LIMIT_S = 60.0
RETRY_FIRST_S, RETRY_LAST_S = 0.5, 30.0
INIT_SLACK_MS = 5_000
POLL_S = 0.2

log = logging.getLogger("acktree.traces")


@dataclass(slots=True)
class Waiting:
    """Results that were read and are not exported yet."""

    failed: dict[int, FinishedRoot] = field(default_factory=dict)
    acked: list[AckedRoots] = field(default_factory=list)
    next_offsets: dict[Place, int] = field(default_factory=dict)
    since_s: float | None = None

    @property
    def is_full(self) -> bool:
        return len(self.failed) >= MAX_WAITING or len(self.acked) >= MAX_WAITING


class TraceExport:
    """Exports the trees of one topology until it is stopped."""

    def __init__(
        self,
        bootstrap: str,
        topology: str,
        user: Settings,
        sender: OtlpSender,
        *,
        slow_s: float | None = None,
        selection: Selection | None = None,
        ready: Callable[[str], object] = lambda _text: None,
        progress: Liveness | None = None,
    ) -> None:
        """``slow_s``: also export trees that took longer from init to result.

        Raises:
            BrokerUnreachable, UnknownTopology, RefusedSetting: see their docstrings.
        """
        self.selection = selection or Selection()
        self.counters: Counter[str] = Counter()
        self.progress = progress or Liveness()
        self._bootstrap, self._sender, self._ready = bootstrap, sender, ready
        self._cluster = Cluster(bootstrap, topology, user)
        group = self._cluster.topology.group_of(GROUP)
        self._consumer: Consumer = make_consumer(reader_settings(bootstrap, group, user))
        self._log = LogReader(self._consumer, bootstrap, group, user, is_member=True)
        self._unserved: list[LogRange] = []
        """What came while nothing was to be read."""
        self._inits = None if slow_s is None else RecentInits(slow_s)
        self._init_positions: dict[Place, int] = {}
        self._waiting, self._topics = Waiting(), list[str]()
        self._exported: dict[int, None] = {}
        """The roots of the last KEPT_ROOTS trees that were exported, oldest first."""
        self._is_stopped = self._must_rewind = False
        self._omitted_logged: dict[tuple[str, str], int] = {}

    def stop(self) -> None:
        """End the loop soon; may be called from a signal handler."""
        self._is_stopped = True

    def run(self) -> None:
        """Export until ``stop``. Raises BrokerRefused, and others that no retry helps."""
        try:
            while not self._is_stopped:
                self.progress.begin_turn()
                try:
                    self._turn()
                except AcktreeError as error:
                    if not was_transient(error):
                        raise
                    self._log_unread(error)
                    self._serve_for(RETRY_FIRST_S)
        finally:
            with self.progress.waiting():
                self._consumer.close()
                self._cluster.close()
                self._sender.close()

    def _turn(self) -> None:
        self._subscribe()
        self._poll(POLL_S)
        waiting = self._waiting
        if waiting.since_s is not None and world.monotonic_s() >= waiting.since_s + SETTLE_S:
            self._export(waiting)

    def _log_unread(self, error: Exception) -> None:
        log.warning("trees were not read: %s", error, extra={"action": "trees_unread"})

    def _subscribe(self) -> None:
        """Follow the result topics of every version that is known."""
        self._cluster.refresh()
        versions = self._cluster.history.versions.values()
        tasks = {task for version in versions for tasks in version.spout_tasks.values() for task in tasks}
        topics = [self._cluster.topology.result_topic(task) for task in sorted(tasks)]
        if topics == self._topics:
            return
        self._topics = topics

        def on_assign(_: Consumer, assigned: list[TopicPartition]) -> None:
            places = [(place.topic, place.partition) for place in assigned]
            self._log.begin(dict.fromkeys(places, OFFSET_BEGINNING))
            self._log.pause(places)  # until it is known what is committed
            self._must_rewind = True
            self._ready(f"ready export-traces of topology {self._cluster.topology.name}")

        def on_revoke(_: Consumer, revoked: list[TopicPartition]) -> None:
            self._log.forget([(place.topic, place.partition) for place in revoked])
            # Not committed, so the next owner exports them, which may be this one; the ids are the same.
            self._waiting, self._must_rewind = Waiting(), True

        self._consumer.subscribe(topics, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)

    def _poll(self, wait_s: float) -> None:
        """Read results into what waits; serve the group even if nothing more may wait."""
        self._rewind()
        (self._log.pause if self._waiting.is_full else self._log.resume)(self._log.places)
        self._unserved += self._log.read(BATCH, wait_s)
        if self._must_rewind:  # by a rebalance in that call
            return
        ranges, self._unserved = self._unserved, []
        for log_range in ranges:
            self._add(log_range, self._waiting)

    def _add(self, log_range: LogRange, waiting: Waiting) -> None:
        """Add what a range of a result topic holds; log what cannot be read, and go on behind it."""
        if log_range.found is Found.GONE:
            raise as_clear_error(log_range.error, self._bootstrap)
        if log_range.found is not Found.READ:
            log.error("%s", log_range.text, extra={"action": log_range.action})
        if log_range.found is Found.FELL:
            self._log.begin({log_range.place: log_range.start})
        for message in log_range.records:
            failed, acked = read_result(message)
            for finished in failed:
                if finished.root not in waiting.failed and self._takes(finished):
                    waiting.failed[finished.root] = finished
            if acked is not None and self._inits is not None:
                waiting.acked.append(acked)
        waiting.next_offsets[log_range.place] = (
            log_range.start if log_range.found is Found.FELL else log_range.end
        )
        waiting.since_s = waiting.since_s or world.monotonic_s()

    def _rewind(self) -> None:
        """Read from what is committed: what was just assigned, and what was dropped of other partitions."""
        if not self._must_rewind:
            return
        self._waiting, self._unserved = Waiting(), []
        places = [TopicPartition(*place) for place in self._log.places]
        starts: dict[Place, int] = {}
        with clear_errors(self._bootstrap):
            for place in self._consumer.committed(places, BROKER_TIMEOUT_S) if places else []:
                if place.error is not None:
                    raise KafkaException(place.error)
                starts[place.topic, place.partition] = place.offset if place.offset >= 0 else OFFSET_BEGINNING
        if starts:
            self._log.begin(starts)
        self._must_rewind = False

    def _takes(self, finished: FinishedRoot) -> bool:
        return finished.root not in self._exported and self.selection.takes(finished)

    def _export(self, waiting: Waiting) -> None:
        """Export all that waits, then commit."""
        began_s = world.monotonic_s()
        if waiting.acked and self._inits is not None:
            self._read_inits(self._inits, waiting.acked)
            slow = [each for each in self._inits.slow_of(waiting.acked) if self._takes(each)]
            waiting.acked.clear()
            waiting.failed |= {each.root: each for each in slow}
        due = list(waiting.failed.values())
        for start in range(0, len(due), MAX_TREES):
            if not self._export_some(due[start : start + MAX_TREES], waiting):
                return
        if self._waiting is not waiting:  # taken away meanwhile
            return
        self._commit(waiting)
        self._waiting = Waiting()
        self._log_omitted()
        if due:
            # At most half of the time is spent on reading: a burst of failures must not burden the cluster.
            self._serve_for(min(READ_LIMIT_S, world.monotonic_s() - began_s), may_read=True)

    def _export_some(self, due: Sequence[FinishedRoot], waiting: Waiting) -> bool:
        """Export some trees; return False if they were taken away or a stop came before."""
        trees: list[ReadTree] | None = None
        retry_s = RETRY_FIRST_S
        while not self._is_stopped and self._waiting is waiting:
            self.progress.begin_turn()
            try:
                trees = self._send(self._read(due) if trees is None else trees)
            except AcktreeError as error:
                if not was_transient(error):
                    raise
                self._log_unread(error)
            if trees == []:
                return True
            self._serve_for(retry_s)
            retry_s = min(2 * retry_s, RETRY_LAST_S)
        return False

    def _read(self, due: Sequence[FinishedRoot]) -> list[ReadTree]:
        trees = read_trees(self._cluster, due, READ_LIMIT_S)
        slow_ms = 0 if self._inits is None else self._inits.slow_ms
        kept = [tree for tree in trees if not _was_fast(tree, slow_ms)]
        self.counters["incomplete"] += sum(bool(tree.incomplete) for tree in kept)
        return kept

    def _send(self, trees: list[ReadTree]) -> list[ReadTree]:
        """Send trees; return those that are to be sent again."""
        spans = self._spans(trees)
        outcome = self._sender.send([span for each in spans for span in each]) if any(spans) else Sent.SENT
        if outcome is Sent.FAILED:
            self._log_failed(len(trees))
            return trees
        if outcome is Sent.SENT:
            self._count(trees, spans)
            return []
        if len(trees) > 1:  # one of them is why: each alone
            return [left for tree in trees for left in self._send([tree])]
        self.counters["refused"] += 1
        text, action = (
            "the receiver rejected the tree of root %016x: it is left out",
            {"action": "tree_refused"},
        )
        log.error(text, trees[0].finished.root, extra=action)
        return []

    def _spans(self, trees: list[ReadTree]) -> list[list[Span]]:
        """Return the spans of each tree, none for one that has none for whatever reason."""
        sources = read_sources(self._cluster, other_roots(trees))
        made: list[list[Span]] = []
        for tree in trees:
            try:
                made.append(make_spans(tree, self._cluster.history, sources))
            except Exception:
                self.counters["broken"] += 1
                text, action = (
                    "the tree of root %016x has no spans: it is left out",
                    {"action": "tree_broken"},
                )
                log.exception(text, tree.finished.root, extra=action)
                made.append([])
        return made

    def _count(self, trees: Sequence[ReadTree], spans: Sequence[Sequence[Span]]) -> None:
        for tree, each in zip(trees, spans, strict=True):
            if each:
                self.counters[f"exported {tree.finished.kind}"] += 1
                self.counters["spans"] += len(each)
                self._exported[tree.finished.root] = None
        while len(self._exported) > KEPT_ROOTS:
            del self._exported[next(iter(self._exported))]

    def _log_failed(self, count: int) -> None:
        self.counters["failed_exports"] += 1
        text, action = "the receiver did not accept %d trees: retrying", {"action": "export_failed"}
        log.warning(text, count, extra=action)

    def _serve_for(self, duration_s: float, may_read: bool = False) -> None:
        """Stay in the group, by default without reading results."""
        until_s, waiting = world.monotonic_s() + duration_s, self._waiting
        while not self._is_stopped and self._waiting is waiting and world.monotonic_s() < until_s:
            self.progress.begin_turn()
            if may_read:
                self._poll(POLL_S)
                continue
            self._log.pause(self._log.places)
            self._unserved += self._log.read(1, POLL_S)

    def _read_inits(self, inits: RecentInits, acked: Sequence[AckedRoots]) -> None:
        """Bring the recent inits up to the end of the log."""
        cluster, topic = self._cluster, self._cluster.topology.ack_init_topic
        first_ms = min(each.at.time_ms for each in acked) - inits.slow_ms - INIT_SLACK_MS
        places = cluster.partitions([topic])
        ends, begins = cluster.ends(places), cluster.at_time(places, first_ms)
        spans = {
            place: OffsetRange(max(begins[place], self._init_positions.get(place, 0)), ends[place])
            for place in places
        }
        for log_range in cluster.scan(spans):
            for record in log_range.records:
                try:
                    inits.add(decode_ack_init(record.value() or b"").inits["root"], record.timestamp()[1])
                except MalformedRecord:
                    continue
            is_continued = log_range.found not in (Found.HIDDEN, Found.FELL)
            self._init_positions[log_range.place] = log_range.end if is_continued else log_range.start
            if log_range.found not in (Found.READ, Found.HIDDEN):
                log.warning("%s", what_is_unread(log_range), extra={"action": "trees_unread"})
        inits.drop_before(first_ms)

    def _commit(self, waiting: Waiting) -> None:
        offsets = [TopicPartition(*place, offset) for place, offset in waiting.next_offsets.items()]
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if not (is_membership_lost(error.args[0]) or is_transient(error.args[0])):
                raise as_clear_error(error.args[0], self._bootstrap) from error
            log.warning("reading results again: %s", error, extra={"action": "commit_refused"})

    def _log_omitted(self) -> None:
        for (kind, reason), count in self.selection.omitted.items():
            new = count - self._omitted_logged.get((kind, reason), 0)
            if new and reason == "limit":
                text, action = (
                    "%d %s trees were left out: more than --per-minute",
                    {"action": "trees_omitted"},
                )
                log.warning(text, new, kind, extra=action)
            self._omitted_logged[kind, reason] = count


def _was_fast(tree: ReadTree, slow_ms: int) -> bool:
    """Return whether an acked tree was not slow after all: its init is known, and near its result."""
    init = tree.emission.init
    return (
        tree.finished.kind == "acked"
        and init is not None
        and tree.finished.at.time_ms - init.at.time_ms <= slow_ms
    )
