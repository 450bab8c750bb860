"""Properties of the fold: equal to a dict, and never early whatever the log brings."""

import random
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.model import TableModel
from acker.tester import Tester, entries
from acktree.acker.folding.table import Table
from acktree.wire.batch_codec import decode_ack_batch, decode_init_batch
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import ID, Ack, AckInit, Fail
from hypothesis_profiles import examples

# Few roots and values, so that they meet; roots with the same home slots, and the ends of the range.
ROOTS = st.sampled_from([1, 2, 3, 4, 5, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
VALUES = st.integers(0, 3)
ENTRY_LISTS = st.lists(st.tuples(ROOTS, VALUES), max_size=4)
RECORDS = st.one_of(
    st.tuples(st.just("init"), st.integers(0, 3), ENTRY_LISTS),
    st.tuples(
        st.just("ack"),
        st.lists(st.tuples(ROOTS, st.sampled_from(["", "broken", "größer"])), max_size=2),
        ENTRY_LISTS,
        st.lists(ROOTS, max_size=2),
    ),
    st.tuples(st.just("expire"), st.integers(1, 8), st.integers(1, 20)),
)


PAUSES = st.integers(-2, 4)


@given(st.lists(st.lists(st.tuples(PAUSES, RECORDS), max_size=5), max_size=12), st.integers(0, 2**64 - 1))
@examples(300)
def test_the_compiled_table_is_equal_to_a_dict(batches, seed):
    table, model, tick = Table(seed), TableModel(), 2**32 - 6
    acked, failed, timed_out = [], [], []
    for bucket, batch in enumerate(batches):
        for pause, (kind, *arguments) in batch:
            tick += pause
            if kind == "init":
                task, pairs = arguments
                record = decode_init_batch([encode_ack_init(AckInit(task, 1, entries(pairs)))])
                finished = table.fold_inits(record, np.array([tick]), bucket)
                for root, value in pairs:
                    model.init(root, value, task, tick, bucket)
            elif kind == "ack":
                fails, acks, resets = arguments
                ack = Ack(
                    "bolt", 1, entries(acks), tuple(Fail(*fail) for fail in fails), np.array(resets, ID)
                )
                finished = table.fold_acks(decode_ack_batch([encode_ack(ack)]), np.array([tick]), bucket)
                model.record(fails, acks, resets, tick, bucket)
            else:
                gone = table.expire(tick, *arguments)
                timed_out += zip(gone.tasks.tolist(), gone.roots.tolist(), strict=True)
                model.expire(tick, *arguments)
                continue
            acked += zip(finished.acked_tasks.tolist(), finished.acked.tolist(), strict=True)
            failed += [(failure.spout_task, failure.root, failure.reason.text) for failure in finished.failed]
    assert acked == model.acked
    assert failed == model.failed
    assert Counter(timed_out) == Counter(model.timed_out)
    assert len(table) == len(model.held)
    assert table.pending == sum(held.init_seen for held in model.held.values())
    assert table.duplicated_inits == model.duplicated_inits
    assert table.dropped_orphans == model.dropped_orphans
    assert table.late == model.late
    for root, held in model.held.items():
        entry = table.entry(root)
        assert entry is not None
        assert entry == (
            held.value,
            held.init_seen,
            held.failed,
            held.task,
            held.bucket,
            held.tick & 0xFFFFFFFF,
        )
    bucket_counts = Counter(held.bucket for held in model.held.values())
    assert {bucket: int(n) for bucket, n in enumerate(table.bucket_counts) if n} == bucket_counts


def grow_tree(draw, root, edge_source):
    """Return the messages (kind, edges) of an explicit tree: each knows which edges it touches."""
    first = [edge_source() for _ in range(draw.randint(0, 3))]
    messages, open_edges = [("init", list(first))], list(first)
    while open_edges:
        edge = open_edges.pop(draw.randrange(len(open_edges)))
        children = [edge_source() for _ in range(draw.choice([0, 0, 1, 2, 3]) if len(messages) < 12 else 0)]
        open_edges += children
        messages.append(("ack", [edge, *children]))
    return messages


def deliver(tester, root, message):
    kind, edges = message
    (tester.init if kind == "init" else tester.ack)(root, *edges)


@given(st.randoms(use_true_random=False), st.integers(1, 3))
@examples(300)
def test_no_order_loss_or_duplication_completes_a_tree_early(draw, trees):
    edge_source = random.Random(draw.random()).getrandbits
    sent = {root: grow_tree(draw, root, lambda: edge_source(64) | 1) for root in range(1, trees + 1)}
    stream = [(root, number) for root, messages in sent.items() for number in range(len(messages))]
    stream = [message for message in stream for _ in range(draw.choice([0, 1, 1, 1, 1, 2, 3]))]
    draw.shuffle(stream)
    tester, seen, known = Tester(), {root: set() for root in sent}, 0
    for root, number in stream:
        deliver(tester, root, sent[root][number])
        seen[root].add(number)
        for _, acked in tester.acked[known:]:
            assert seen[acked] == set(range(len(sent[acked]))), "acked before all of its tree was seen"
        known = len(tester.acked)


@given(st.randoms(use_true_random=False))
@examples(200)
def test_in_any_order_a_tree_is_acked_by_its_last_message_and_not_before(draw):
    edge_source = random.Random(draw.random()).getrandbits
    messages = grow_tree(draw, 7, lambda: edge_source(64) | 1)
    draw.shuffle(messages)
    tester = Tester()
    for message in messages[:-1]:
        deliver(tester, 7, message)
    assert tester.acked == []
    deliver(tester, 7, messages[-1])
    assert tester.acked == [(0, 7)]
    assert len(tester.partition.table) == 0


@given(st.randoms(use_true_random=False), st.integers(1, 6))
@examples(200)
def test_a_crash_anywhere_and_a_refold_from_the_cut_gives_every_result(draw, trees):
    """Results may be reported twice and late acks may leave orphans; no tree is lost, none is early."""
    edge_source = random.Random(draw.random()).getrandbits
    sent = {root: grow_tree(draw, root, lambda: edge_source(64) | 1) for root in range(1, trees + 1)}
    stream = [(root, message) for root, messages in sent.items() for message in messages]
    draw.shuffle(stream)
    writer = Tester(eager=False)
    for root, message in stream:
        deliver(writer, root, message)
    ends = len(writer.init_log), len(writer.ack_log)
    committed = writer.partition.cut
    for _ in range(draw.randint(1, 12)):
        writer.now_ms += draw.choice([0, 100, 300])
        at = writer.partition.positions
        writer.fold(draw.randint(at.inits, ends[0]), draw.randint(at.acks, ends[1]))
        if draw.random() < 0.4:
            assert writer.partition.cut >= committed
            committed = writer.partition.cut
        if draw.random() < 0.3:
            writer.crash(committed)
    writer.fold_all()
    assert {root for _, root in writer.acked} == set(sent)


@pytest.mark.parametrize("layers", [100])
def test_layers_of_random_edges_stay_open_until_the_last_is_closed(layers):
    source, tester = random.Random(5), Tester()
    edge = source.getrandbits(64)
    tester.init(9, edge)
    for _ in range(layers):
        children = [source.getrandbits(64) for _ in range(source.randint(1, 5))]
        tester.ack(9, edge, *children)
        for child in children[1:]:
            tester.ack(9, child)
        edge = children[0]
        assert not tester.acked
    assert tester.ack(9, edge).acked == [(0, 9)]


@pytest.fixture(scope="module")
def small_table():
    """Tables that begin so small that a test need not fill thousands of slots."""
    with patch("acktree.acker.folding.table.LEAST_SLOTS", 16):
        yield


@given(st.integers(1, 500), st.integers(0, 2**64 - 1), st.booleans())
@examples(60)
def test_growing_and_shrinking_lose_nothing_and_invent_nothing(small_table, count, seed, dense):
    source = np.random.default_rng(seed % 2**32)
    roots = (
        np.arange(1, count + 1, dtype=np.uint64) if dense else source.integers(1, 2**64 - 1, count, np.uint64)
    )
    roots = np.unique(roots)
    tester = Tester(seed=seed)
    for start in range(0, len(roots), 60):
        tester.init_record((int(root), 1) for root in roots[start : start + 60])
    assert tester.partition.table.pending == len(roots)
    source.shuffle(roots)
    half = len(roots) // 2
    tester.ack_record(acks=[(int(root), 1) for root in roots[:half]])
    assert sorted(root for _, root in tester.acked) == sorted(roots[:half].tolist())
    assert all(tester.entry(int(root)) for root in roots[half:])
    tester.ack_record(acks=[(int(root), 1) for root in roots[half:]])
    assert len(tester.acked) == len(roots)
    assert len(tester.partition.table) == 0
