"""What is read of trees in the log, and the spans made of it: attempts, joins, what is lost or not known."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.console.traces.finished import AckedRoots, FinishedRoot, RecentInits, Selection, read_result
from acktree.console.traces.spans import Span, make_spans, other_roots
from acktree.console.traces.trees import ReadTree, read_sources, read_trees
from acktree.console.view.cluster import Cluster, OffsetRange
from acktree.console.view.records.tree import At
from acktree.core import world
from acktree.core.edges import EdgeSource
from acktree.core.kafka.clients import make_admin, make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.wire.codec import encode_ack, encode_ack_init, encode_result
from acktree.wire.control_records import ENTRY, Ack, AckInit, Cause, Fail, Failure, Result
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import consumer_edge, emitted_value, fnv1a64, generation_of, root_id
from acktree.wire.trace_context import span_of_emission, span_of_execution
from deadlines import stretched
from producers.cluster import until
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

WAIT_S = stretched(30)
LIMIT_S = 30.0
TRACES = ["4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"]
SPAN = "00f067aa0ba902b7"
TOPOLOGY = """
name = "{name}"
ackers = 2
[spouts.lines]
topics = ["{name}.lines"]
emits = ["{name}.words"]
[bolts.split]
reads = ["{name}.words"]
emits = ["{name}.parts"]
[bolts.count]
reads = ["{name}.parts"]
"""


class WrittenLog:
    """Writes what a spout in Spark, two bolts and an acker would, and reads the trees back."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.admin = make_admin(bootstrap, {})
        world.wait_for(self.admin.create_topics([NewTopic(f"{name}.lines", 1)])[f"{name}.lines"], WAIT_S)
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
        self.history = read_history(bootstrap, name, {})
        self.version, self.slot = self.history.latest.version, self.history.latest.slots[0].slot
        self.producer, self.edges = make_producer({"bootstrap.servers": bootstrap}), EdgeSource()
        self.lines = 0

    def line(self, trace: str | None) -> int:
        """Write a source record; return its offset."""
        headers = [("traceparent", f"00-{trace}-{SPAN}-01")] if trace else []
        self.producer.produce(f"{self.name}.lines", b"line", headers=headers, partition=0)
        self.lines += 1
        return self.lines - 1

    def root(self, offset: int, attempt: int = 0) -> int:
        return root_id(self.slot, generation_of(1, attempt), offset)

    def tuple(
        self, topic: str, roots: Iterable[int], parent: str | None = None, time_ms: int = 0
    ) -> dict[int, int]:
        """Write a tuple; return its edge by root."""
        edges = {root: self.edges.one() for root in roots}
        header = encode_header(self.version, [Anchor(self.version, *each) for each in edges.items()])
        traced = [("traceparent", parent)] if parent else []
        self.producer.produce(
            f"{self.name}.{topic}", b"x", headers=[*traced, (HEADER, header)], partition=0, timestamp=time_ms
        )
        return edges

    def emitted(self, topic: str, edge: int) -> int:
        return emitted_value(edge, self.history.readers(self.version, f"{self.name}.{topic}").hashes)

    def init(self, root: int, value: int) -> None:
        data = encode_ack_init(AckInit(0, self.version, np.array([(root, value)], ENTRY)))
        self.producer.produce(f"{self.name}.ack-init", data, partition=root % 2)

    def ack(self, bolt: str, root: int, value: int) -> None:
        data = encode_ack(Ack(f"{bolt}@here:1", self.version, np.array([(root, value)], ENTRY)))
        self.producer.produce(f"{self.name}.ack", data, partition=root % 2)

    def fail(self, bolt: str, root: int, reason: str) -> None:
        data = encode_ack(Ack(f"{bolt}@here:1", self.version, fails=[Fail(root, reason)]))
        self.producer.produce(f"{self.name}.ack", data, partition=root % 2)

    def owned(self, bolt: str, edge: int) -> int:
        return consumer_edge(edge, fnv1a64(bolt))

    def whole_tree(self, root: int, words: int = 1, time_ms: int = 0, hidden: str = "") -> None:
        """Write a tree that is done; the tuples on the ``hidden`` topic are left out."""
        total = 0
        for _ in range(words):
            word = self.tuple("words", [root], time_ms=time_ms)[root] if hidden != "words" else 7
            part = self.tuple("parts", [root], time_ms=time_ms)[root] if hidden != "parts" else 9
            total ^= self.emitted("words", word)
            self.ack("split", root, self.owned("split", word) ^ self.emitted("parts", part))
            self.ack("count", root, self.owned("count", part))
        self.init(root, total)

    def result(self, *roots: int, reason: str | None = None) -> None:
        acked = np.array(roots if reason is None else (), np.uint64)
        failed = [] if reason is None else [Failure(r, Cause.FAILED, "count@here:1", reason) for r in roots]
        self.producer.produce(f"{self.name}.spout-0", encode_result(Result(0, acked, failed)))

    def read(self) -> dict[int, ReadTree]:
        """Return the trees of all results."""
        assert self.producer.flush(WAIT_S) == 0
        cluster = Cluster(self.bootstrap, self.name, {})
        try:
            finished: list[FinishedRoot] = []
            places = cluster.partitions([f"{self.name}.spout-0"])
            spans = {place: OffsetRange(0, end) for place, end in cluster.ends(places).items()}
            for log_range in cluster.scan(spans):
                for record in log_range.records:
                    failed, acked = read_result(record)
                    finished += failed
                    if acked is not None:
                        finished += [
                            FinishedRoot(root, "acked", acked.acker, None, None, acked.at)
                            for root in acked.roots.tolist()
                        ]
            trees = {tree.finished.root: tree for tree in read_trees(cluster, finished, LIMIT_S)}
            self.sources = read_sources(cluster, other_roots(trees.values()))
            return trees
        finally:
            cluster.close()

    def spans(self, tree: ReadTree) -> list[Span]:
        return make_spans(tree, self.history, self.sources)


@pytest.fixture
def log(kafka: str, unique: str, simulation: Simulation | None) -> WrittenLog:
    made: list[WrittenLog] = []
    run_in(simulation, lambda: made.append(WrittenLog(kafka, unique)))
    return made[0]


def test_each_attempt_is_a_tree_of_its_records_trace_linked_to_the_others(log: WrittenLog):
    offset = log.line(TRACES[0])
    roots = [log.root(offset, attempt) for attempt in range(3)]
    for root in roots:
        parent = f"00-{TRACES[0]}-{span_of_emission(root)}-01"
        edge = log.tuple("words", [root], parent)[root]
        log.init(root, log.emitted("words", edge))
        log.fail("split", root, f"no {root}")
        log.result(root, reason=f"no {root}")
    trees = log.read()
    for number, root in enumerate(roots):
        emission, execution = log.spans(trees[root])
        assert trees[root].incomplete == []
        assert emission.trace_id == execution.trace_id == TRACES[0]
        assert (emission.span_id, emission.parent_id) == (span_of_emission(root), SPAN)
        assert execution.span_id == span_of_execution("split", f"{log.name}.words", 0, number)
        assert execution.parent_id == emission.span_id
        assert emission.error == execution.error == f"no {root}"
        others = {span_of_emission(other) for other in roots if other != root}
        assert {(link.trace_id, link.span_id, link.why) for link in emission.links} == {
            (TRACES[0], other, "attempt") for other in others
        }
        assert emission.attributes["acktree.attempt"] == number


def test_a_tuple_of_two_trees_is_linked_to_the_emission_of_the_other(log: WrittenLog):
    roots = [log.root(log.line(trace)) for trace in TRACES]
    edges = log.tuple("words", roots, f"00-{TRACES[0]}-{span_of_emission(roots[0])}-01")
    for root in roots:
        log.init(root, log.emitted("words", edges[root]))
    log.fail("split", roots[0], "no")
    log.fail("split", roots[1], "no")
    log.result(*roots, reason="no")
    trees = log.read()
    ids = [(trace, span_of_emission(root)) for trace, root in zip(TRACES, roots, strict=True)]
    for number in (0, 1):
        _, execution = log.spans(trees[roots[number]])
        assert (*ids[1 - number], "anchor") in {(e.trace_id, e.span_id, e.why) for e in execution.links}
        assert (execution.trace_id, execution.parent_id) == ids[number]


def test_a_record_without_a_trace_gets_the_same_one_in_every_reading(log: WrittenLog):
    roots = [log.root(log.line(None)) for _ in range(2)]
    for root in roots:
        log.whole_tree(root)
        log.result(root)
    first, second = ([log.spans(tree) for tree in log.read().values()] for _ in range(2))
    assert first == second
    assert len({span.trace_id for spans in first for span in spans}) == 2
    assert not any(span.error for spans in first for span in spans)


def test_a_parent_that_the_log_does_not_name_is_not_invented(log: WrittenLog):
    one, several = (log.root(log.line(None)) for _ in range(2))
    log.whole_tree(one)
    log.whole_tree(several, words=2)
    log.result(one, several)
    trees = log.read()
    emission, count, split = sorted(
        log.spans(trees[one]), key=lambda span: (span.service != "lines", span.service)
    )
    assert (split.parent_id, count.parent_id) == (emission.span_id, split.span_id)
    assert "acktree.parent" not in count.attributes
    spans = log.spans(trees[several])
    unknown = [span for span in spans if span.attributes.get("acktree.parent")]
    assert [span.service for span in unknown] == ["count", "count"]
    assert {span.parent_id for span in unknown} == {spans[0].span_id}
    assert {span.attributes["acktree.end"] for span in spans[1:]} == {"not exact"}


@pytest.mark.parametrize("hidden", ["words", "parts"])
def test_a_tree_whose_tuples_are_not_all_found_is_never_called_complete(log: WrittenLog, hidden: str):
    root = log.root(log.line(None))
    log.whole_tree(root, hidden=hidden)
    log.result(root)
    (tree,) = log.read().values()
    assert any("were found" in sentence for sentence in tree.incomplete)
    assert log.spans(tree)[0].attributes["acktree.complete"] is False


def test_tuples_with_old_timestamps_do_not_make_a_tree_complete(log: WrittenLog):
    root = log.root(log.line(None))
    log.whole_tree(root, time_ms=1)
    log.result(root)
    (tree,) = log.read().values()
    assert bool(tree.incomplete) == (len(tree.emission.tuples) < 2)
    assert tree.incomplete


@pytest.mark.real
def test_a_tree_whose_init_or_record_was_removed_by_retention_says_so(log: WrittenLog):
    root = log.root(log.line(TRACES[0]))
    log.whole_tree(root)
    log.result(root, reason="no")
    assert log.producer.flush(WAIT_S) == 0
    gone = [TopicPartition(f"{log.name}.ack-init", root % 2, 1), TopicPartition(f"{log.name}.lines", 0, 1)]
    for future in log.admin.delete_records(gone).values():
        world.wait_for(future, WAIT_S)
    (tree,) = log.read().values()
    assert "its init is not in the log" in tree.incomplete
    assert any("source record" in sentence for sentence in tree.incomplete)
    emission, *_ = log.spans(tree)
    assert emission.attributes["acktree.complete"] is False
    assert "init" in str(emission.attributes["acktree.incomplete.reason"])


def test_many_trees_read_together_equal_those_read_alone(log: WrittenLog):
    roots = [log.root(log.line(None)) for _ in range(20)]
    for root in roots:
        log.whole_tree(root, words=2)
        log.result(root)
    together = log.read()
    until(lambda: set(together) == set(roots))
    cluster = Cluster(log.bootstrap, log.name, {})
    for tree in together.values():
        (alone,) = read_trees(cluster, [tree.finished], LIMIT_S)
        assert dataclasses.asdict(alone.emission) == dataclasses.asdict(tree.emission)
        assert alone.tuples == tree.tuples
    cluster.close()


AT = At("t.spout-0", 0, 0, 600_000)


def test_an_acked_root_is_slow_unless_its_init_is_recent():
    recent = RecentInits(slow_s=10)
    recent.add(np.array([1, 2], np.uint64), AT.time_ms - 30_000)
    recent.add(np.array([3, 4], np.uint64), AT.time_ms - 5_000)
    acked = AckedRoots(0, np.array([1, 3, 4, 9], np.uint64), AT)
    assert [each.root for each in recent.slow_of([acked])] == [1, 9]
    recent.drop_before(AT.time_ms - 10_000)
    assert [each.root for each in recent.slow_of([acked])] == [1, 9]
    assert [each.root for each in RecentInits(10).slow_of([acked])] == [1, 3, 4, 9]


def test_a_sample_has_all_or_no_attempts_of_a_record_and_the_rest_is_counted():
    selection, taken = Selection(sample=0.25, per_minute=10**9), []
    for offset in range(2_000):
        roots = [root_id(3, generation_of(1 + attempt // 16, attempt % 16), offset) for attempt in range(3)]
        choices = {selection.takes(FinishedRoot(root, "failed", 0, None, None, AT)) for root in roots}
        assert len(choices) == 1
        taken += choices
    assert 400 < sum(taken) < 600
    assert selection.omitted["failed", "sample"] == 3 * (2_000 - sum(taken))
