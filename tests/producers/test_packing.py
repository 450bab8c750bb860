"""Packed control records contain exactly what was added, whatever the order and the grouping."""

from collections import defaultdict
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.errors import UnknownVersion
from acktree.core.topology.registry import History, Published
from acktree.producers.collecting.arithmetic import packing
from acktree.producers.collecting.arithmetic.packing import MAX_STACK_BYTES, MAX_STACKS, AckPacker, InitPacker
from acktree.wire.codec import decode_ack, decode_ack_init
from acktree.wire.control_records import BACK_OFF, NEVER, Ack, AckInit, FailedTuple, stack_of

IDS = st.one_of(st.integers(1, 40), st.integers(1, 2**64 - 1), st.sampled_from([2**63 - 1, 2**63, 2**64 - 1]))
ENTRIES = st.lists(st.tuples(st.sampled_from([1, 2, 3]), IDS, st.integers(0, 2**64 - 1)), max_size=60)
ACKERS = {1: 1, 2: 3, 3: 0}


def history() -> History:
    return History(
        "t",
        {v: Published(name="t", ackers=n, version=v, spout_tasks={}, slots=()) for v, n in ACKERS.items()},
    )


class Sent:
    """A sender that records what is sent."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int, bytes]] = []

    def __call__(self, topic: str, partition: int, value: bytes) -> None:
        self.records.append((topic, partition, value))

    def acks(self) -> list[tuple[int, Ack]]:
        assert all(topic == "t.ack" for topic, _, _ in self.records)
        return [(partition, decode_ack(value)) for _, partition, value in self.records]

    def inits(self) -> list[tuple[int, AckInit]]:
        assert all(topic == "t.ack-init" for topic, _, _ in self.records)
        return [(partition, decode_ack_init(value)) for _, partition, value in self.records]


def fold(entries) -> dict[tuple[int, int], int]:
    folded: dict[tuple[int, int], int] = defaultdict(int)
    for version, root, value in entries:
        folded[version, root] ^= value
    return dict(folded)


def u64(numbers) -> np.ndarray:
    return np.array(list(numbers), np.uint64)


@given(ENTRIES, st.booleans())
def test_the_packed_acks_fold_to_what_the_entries_fold_to(entries, at_once):
    sent = Sent()
    packer = AckPacker(history(), "task", sent)
    if at_once:
        for version in ACKERS:
            mine = [e for e in entries if e[0] == version]
            packer.ack_many(version, u64(e[1] for e in mine), u64(e[2] for e in mine))
    else:
        for entry in entries:
            packer.ack(*entry)
    packer.flush()
    records = sent.acks()
    assert len({(p, r.version) for p, r in records}) == len(records)
    packed = [(r.version, int(e["root"]), int(e["value"])) for _, r in records for e in r.acks]
    assert len({(v, root) for v, root, _ in packed}) == len(packed)
    assert fold(packed) == fold(e for e in entries if ACKERS[e[0]])
    assert all(int(root) % ACKERS[r.version] == p for p, r in records for root in r.acks["root"])


@given(ENTRIES)
def test_the_packed_inits_fold_to_what_the_entries_fold_to(entries):
    sent = Sent()
    packer = InitPacker(history(), 5, sent)
    for entry in entries[::2]:
        packer.add(*entry)
    for version, root, value in entries[1::2]:
        packer.add_many(version, u64([root]), u64([value]))
    packer.flush()
    packed = [(r.version, int(e["root"]), int(e["value"])) for _, r in sent.inits() for e in r.inits]
    assert len({(v, root) for v, root, _ in packed}) == len(packed)
    assert fold(packed) == fold(e for e in entries if ACKERS[e[0]])
    assert all(r.spout_task == 5 for _, r in sent.inits())


def test_an_init_of_value_zero_is_sent():
    sent = Sent()
    packer = InitPacker(history(), 0, sent)
    packer.add(1, 9, 0)
    packer.flush()
    assert [r.inits.tolist() for _, r in sent.inits()] == [[(9, 0)]]


def test_nothing_is_sent_twice():
    sent = Sent()
    packer = AckPacker(history(), "task", sent)
    packer.ack(1, 7, 3)
    packer.flush()
    packer.flush()
    assert len(sent.records) == 1
    assert len(packer) == 0


def test_an_unknown_version_is_refused():
    packer = AckPacker(history(), "task", Sent())
    packer.ack(9, 7, 3)
    with pytest.raises(UnknownVersion):
        packer.flush()


@given(st.lists(IDS, max_size=30), st.lists(IDS, max_size=30), st.lists(IDS, max_size=30))
def test_no_ack_is_sent_before_a_fail_of_its_partition_whatever_the_limits(acks, fails, resets):
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("MAX_ENTRIES", "MAX_FAILS", "MAX_RESETS"):
            patch.setattr(packing, limit, 3)
        sent = Sent()
        packer = AckPacker(history(), "task", sent)
        for root in acks:
            packer.ack(2, root, root)
        for root in fails:
            failed = FailedTuple("words", 0, root % 2**31, "abc"[root % 3]) if root % 5 else None
            packer.fail(2, root, f"because {root}", BACK_OFF, failed)
        for root in resets:
            packer.reset(2, root)
        packer.flush()
    acked_in: set[int] = set()
    for partition, record in sent.acks():
        assert not (record.fails and partition in acked_in)
        if len(record.acks):
            acked_in.add(partition)
        assert max(len(record.acks), len(record.fails), len(record.resets)) <= 3
        assert len({stack_of(fail.failed_tuple) for fail in record.fails}) <= 1
    records = [record for _, record in sent.acks()]
    assert sorted(f.root for r in records for f in r.fails) == sorted(set(fails))
    assert sorted(int(root) for r in records for root in r.resets) == sorted(set(resets))
    assert sorted(int(root) for r in records for root in r.acks["root"]) == sorted(set(acks))


def test_the_first_reason_of_a_root_counts():
    sent = Sent()
    packer = AckPacker(history(), "task", sent)
    packer.fail(1, 7, "first")
    packer.fail(1, 7, "second")
    packer.flush()
    assert [f.reason for _, r in sent.acks() for f in r.fails] == ["first"]


def test_a_reason_that_is_long_or_not_unicode_is_cut_not_rejected():
    sent = Sent()
    packer = AckPacker(history(), "task", sent)
    packer.fail(1, 7, "\ud800" + "ä" * packing.MAX_REASON_BYTES)
    packer.flush()
    ((_, record),) = sent.acks()
    assert record.fails[0].reason.startswith("?ä")
    assert len(record.fails[0].reason.encode()) <= packing.MAX_REASON_BYTES


def test_a_full_record_of_all_three_kinds_fits_the_brokers_default_limit():
    sent = Sent()
    packer = AckPacker(history(), "t" * 200, sent)
    roots = np.arange(1, 70_000, dtype=np.uint64)
    packer.ack_many(1, roots, roots)
    for root in range(1, 1000):
        packer.fail(1, root, "x" * 5000, NEVER, FailedTuple("t" * 249, root, root, "s" * 5000))
    for root in range(1, 20_000):
        packer.reset(1, root)
    packer.flush()
    assert max(len(value) for _, _, value in sent.records) < 1_000_000


@given(
    st.integers(0, 2**32),
    st.integers(packing.MIN_COMPILED_ENTRIES, 3 * packing.MIN_COMPILED_ENTRIES),
    st.integers(1, 2 * packing.MIN_COMPILED_ENTRIES),
    st.sampled_from([1, 64, 2**40]),
)
def test_many_entries_fold_like_a_few(seed: int, count: int, distinct: int, apart: int):
    drawn = np.random.default_rng(seed)
    roots = (drawn.integers(0, distinct, count).astype(np.uint64) + np.uint64(1)) * np.uint64(apart)
    values = drawn.integers(0, 2**64, count, np.uint64)
    folded = packing.fold_entries(roots, values)
    assert len(np.unique(folded["root"])) == len(folded)
    plain = fold((0, root, value) for root, value in zip(roots.tolist(), values.tolist(), strict=True))
    assert {(0, root): value for root, value in folded.tolist()} == plain


def test_many_entries_are_also_folded_without_numba(monkeypatch: pytest.MonkeyPatch):
    roots, values = u64([*range(1, 6000), 7]), u64([*range(1, 6000), 1])
    compiled = sorted(packing.fold_entries(roots, values).tolist())
    monkeypatch.setattr(packing, "compiled_fold", lambda: None)
    assert sorted(packing.fold_entries(roots, values).tolist()) == compiled


def test_a_fail_says_when_its_record_is_emitted_again_in_the_record_with_the_acks():
    sent = Sent()
    packer = AckPacker(history(), "task", sent)
    packer.fail(1, 7, "plain")
    packer.fail(1, 8, "later", 5000)
    packer.fail(1, 9, "never", NEVER)
    packer.ack(1, 6, 5)
    packer.flush()
    ((_, record),) = sent.acks()
    found = sorted(tuple(fail[:3]) for fail in record.fails)
    assert found == [(7, "plain", BACK_OFF), (8, "later", 5000), (9, "never", NEVER)]
    assert record.acks.tolist() == [(6, 5)]


def test_fails_of_several_stacks_are_in_one_record_each_and_the_acks_in_the_last_one():
    sent = Sent()
    packer = AckPacker(history(), "task", sent)
    for root, stack in ((7, "one"), (8, "two"), (9, "one")):
        packer.fail(1, root, "no", 5000, FailedTuple("words", 3, root, stack))
    packer.ack(1, 6, 5)
    packer.flush()
    named = [[(fail.root, fail.failed_tuple) for fail in record.fails] for _, record in sent.acks()]
    assert named[0] == [(root, FailedTuple("words", 3, root, "one")) for root in (7, 9)]
    assert named[1:] == [[(8, FailedTuple("words", 3, 8, "two"))]]
    assert [record.acks.tolist() for _, record in sent.acks()] == [[], [(6, 5)]]


def test_a_stack_is_cut_to_its_end_and_only_a_few_stacks_go_with_a_flush():
    sent = Sent()
    packer = AckPacker(history(), "task", sent)
    for root in range(1, 40):
        packer.fail(1, root, "no", BACK_OFF, FailedTuple("words", 3, root, "ä" * 9_000 + f"{root:02}"))
    packer.flush()
    fails = [fail for _, record in sent.acks() for fail in record.fails if fail.failed_tuple]
    assert len(fails) == 39, "a fail without its stack still names its tuple"
    with_stack = [fail for fail in fails if fail.failed_tuple.stack]
    assert sorted(fail.root for fail in with_stack) == list(range(1, MAX_STACKS + 1))
    assert all(fail.failed_tuple.stack.endswith(f"{fail.root:02}") for fail in with_stack)
    assert all(len(fail.failed_tuple.stack.encode()) <= MAX_STACK_BYTES for fail in with_stack)
    sent.records.clear()
    packer.fail(1, 99, "no", BACK_OFF, FailedTuple("words", 3, 99, "another"))
    packer.flush()
    ((_, first),) = sent.acks()
    assert first.fails[0].failed_tuple.stack == "another"


@pytest.mark.parametrize("order", list(permutations([BACK_OFF, 1000, 5000, NEVER])))
def test_the_strongest_of_several_fails_of_a_root_counts(order):
    sent = Sent()
    packer = AckPacker(history(), "task", sent)
    for number, retry in enumerate(order):
        packer.fail(1, 7, f"{number}", retry)
    packer.flush()
    ((_, first),) = sent.acks()
    assert [tuple(fail) for fail in first.fails] == [(7, f"{order.index(NEVER)}", NEVER, None)]
