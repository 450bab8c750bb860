"""The console's fold of the control topics says what an acker's would: which roots are open."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acktree.console.view import open_roots
from acktree.console.view.open_roots import AppendedRecord, OpenRoots
from acktree.schemas.control_records import ENTRY, Ack, AckInit, Fail

ROOTS = st.integers(1, 4)
VALUES = st.integers(0, 3)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("init"), ROOTS, VALUES),
        st.tuples(st.just("ack"), ROOTS, VALUES),
        st.tuples(st.just("reset"), ROOTS, st.integers(1, 3)),
    ),
    max_size=30,
)


def entries(*pairs):
    return np.array(list(pairs), ENTRY)


def init(root, value, at=0, append_ms=1_000):
    return AppendedRecord(AckInit(0, 1, entries((root, value))), at, append_ms)


def ack(root, value, append_ms=1_000):
    return AppendedRecord(Ack("t", 1, entries((root, value))), 0, append_ms)


def fail(root):
    return AppendedRecord(Ack("t", 1, fails=[Fail(root, "no")]), 0, 1_000)


def reset(root, append_ms):
    return AppendedRecord(Ack("t", 1, resets=np.array([root], np.uint64)), 0, append_ms)


def fold(*said):
    roots = OpenRoots()
    roots.fold(said)
    return roots


def test_a_root_is_open_until_its_values_cancel_out():
    roots = fold(init(7, 5))
    assert roots.pending()["root"].tolist() == [7]
    roots.fold([ack(7, 4)])
    assert roots.pending()["value"].tolist() == [1]
    roots.fold([ack(7, 1)])
    assert len(roots.pending()) == 0


def test_an_early_ack_is_no_pending_root_and_cancels_the_init_later():
    roots = fold(ack(7, 5))
    assert (len(roots.pending()), roots.orphans().tolist()) == (0, [7])
    roots.fold([init(7, 5)])
    assert (len(roots.pending()), len(roots.orphans())) == (0, 0)


def test_a_second_init_cannot_complete_a_tree():
    assert fold(init(7, 5), init(7, 5)).pending()["value"].tolist() == [5]
    roots = fold(init(7, 5))
    roots.fold([init(7, 5)])
    assert roots.pending()["value"].tolist() == [5]


def test_a_failure_before_or_after_the_init_ends_a_root():
    assert len(fold(init(7, 5), fail(7)).pending()) == 0
    roots = fold(fail(7))
    roots.fold([init(7, 5)])
    assert len(roots.pending()) == 0


def test_times_and_offsets_of_init_and_reset_are_kept():
    row = fold(init(7, 5, at=41, append_ms=1_000), reset(7, 3_000), reset(7, 2_000)).pending()[0]
    assert (row["init_ms"], row["reset_ms"], row["init_offset"]) == (1_000, 3_000, 41)


class FoldModel:
    """The fold, root by root and event by event: a value, and whether its init has come."""

    def __init__(self) -> None:
        self.roots: dict[int, tuple[int, bool]] = {}

    def fold(self, events) -> None:
        for kind, root, value in events:
            folded, begun = self.roots.get(root, (0, False))
            counts = kind == "ack" or (kind == "init" and not begun)
            self.roots[root] = (folded ^ value if counts else folded, begun or kind == "init")
        # a root that is zero leaves at the end of a fold, as it does in the acker
        self.roots = {root: seen for root, seen in self.roots.items() if seen != (0, True)}


SAYS = {"init": init, "ack": ack, "reset": reset}


@settings(max_examples=200, deadline=None)
@given(EVENTS, st.integers(1, 31))
def test_any_batching_of_the_log_equals_a_fold_root_by_root(events, chunk):
    roots, model = OpenRoots(), FoldModel()
    for start in range(0, len(events), chunk):
        part = events[start : start + chunk]
        model.fold(part)
        roots.fold([SAYS[kind](root, value) for kind, root, value in part])
        pending = {int(row["root"]): int(row["value"]) for row in roots.pending()}
        assert pending == {root: value for root, (value, begun) in model.roots.items() if begun}
        assert set(roots.orphans().tolist()) == {
            root for root, (_, begun) in model.roots.items() if not begun
        }


def test_many_small_chunks_are_sorted_together(monkeypatch):
    sorts, fold_rows = [], open_roots._fold
    monkeypatch.setattr(open_roots, "FOLD_AT_LEAST", 100)
    monkeypatch.setattr(open_roots, "_fold", lambda rows: fold_rows(sorts.append(len(rows)) or rows))
    roots = OpenRoots()
    for root in range(1, 1_001):
        roots.fold([init(root, 1)])
    assert len(roots.pending()) == 1_000
    assert len(sorts) < 6
    assert sum(sorts) < 4 * 1_000
