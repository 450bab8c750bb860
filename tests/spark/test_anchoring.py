"""What rows say of their roots: edges, values and failures."""

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from acktree.core.edges import EdgeSource
from acktree.producers.collecting.arithmetic.packing import fold_entries
from acktree.spark.tasks.binary_rows import binary_of
from acktree.spark.tasks.writing.anchoring import (
    RootFailure,
    RootUpdates,
    anchor_rows,
    failed_roots,
    fold,
    from_arrow,
    own_values,
    to_arrow,
)
from acktree.wire.control_records import BACK_OFF, ENTRY, NEVER
from acktree.wire.header import ANCHOR, SINGLE
from acktree.wire.ids import emitted_values, fnv1a64, root_ids

READERS = (fnv1a64("one"), fnv1a64("two"))


def inputs(offsets: list[int], version: int = 1, generation: int = 16) -> NDArray[np.void]:
    rows = np.zeros(len(offsets), ANCHOR)
    rows["version"] = version
    rows["root"] = root_ids(3, generation, np.array(offsets, np.int64))
    return rows


def updates(offsets: list[int], version: int = 1) -> RootUpdates:
    """Return what somebody says of the roots of offsets, each time another value."""
    entries = np.empty(len(offsets), ENTRY)
    entries["root"] = inputs(offsets)["root"]
    entries["value"] = np.arange(1, len(offsets) + 1) * 0x1234567
    return RootUpdates(version, entries)


def folded(entries: NDArray[np.void]) -> list[tuple[int, int]]:
    return sorted(fold_entries(*(np.ascontiguousarray(entries[n]) for n in ("root", "value"))).tolist())


@pytest.mark.parametrize("readers", [(), READERS[:1], READERS])
def test_headers_hold_the_edges_that_are_folded(readers: tuple[int, ...]) -> None:
    rows = inputs([5, 5, 7, 5, 8])
    headers, said = anchor_rows(binary_of(rows), 9, EdgeSource(), readers)
    assert isinstance(headers, np.ndarray)
    assert headers.dtype == SINGLE
    assert set(headers["format"].tolist()) == {1}
    assert set(headers["emission"].tolist()) == {9}
    assert headers["version"].tolist() == [1] * 5
    assert headers["root"].tolist() == rows["root"].tolist()
    assert len(set(headers["edge"].tolist())) == 5
    expected = fold_entries(rows["root"].copy(), emitted_values(headers["edge"].copy(), readers))
    assert [each.version for each in said] == [1]
    assert folded(said[0].entries) == sorted(expected.tolist())


def test_rows_of_several_versions_are_reported_by_version() -> None:
    rows = np.concatenate([inputs([1, 2]), inputs([3], version=2)])
    headers, said = anchor_rows(binary_of(rows), 9, EdgeSource(), READERS)
    assert headers is not None
    assert {each.version: each.entries["root"].tolist() for each in said} == {
        1: rows["root"][:2].tolist(),
        2: rows["root"][2:].tolist(),
    }


def test_results_pass_through_arrow_unchanged() -> None:
    failed = RootUpdates(
        2, updates([4, 5]).entries, {int(inputs([5])["root"][0]): RootFailure("no good", 1500)}
    )
    batches = [*map(to_arrow, fold([updates([1, 2, 1]), failed, updates([1])]))]
    back = {each.version: each for each in fold(from_arrow(batches))}
    assert set(back) == {1, 2}
    assert folded(back[1].entries) == folded(
        np.concatenate([updates([1, 2, 1]).entries, updates([1]).entries])
    )
    assert folded(back[2].entries) == folded(failed.entries)
    assert back[2].failed == failed.failed
    assert not back[1].failed


@pytest.mark.parametrize(
    ("retries", "counts"),
    [
        ((BACK_OFF, BACK_OFF), "0"),
        ((BACK_OFF, 0), "1"),
        ((500, 900), "1"),
        ((900, 500), "0"),
        ((10**9, NEVER, NEVER), "1"),
        ((NEVER, 10**9), "0"),
    ],
)
def test_the_first_of_the_strongest_failures_of_a_root_is_kept(retries: tuple[int, ...], counts: str) -> None:
    """As in one flush of a worker: in one update, in several, and through a shuffle."""
    root = int(inputs([1])["root"][0])
    failures = [RootFailure(str(number), retry) for number, retry in enumerate(retries)]
    wanted = {root: failures[int(counts)]}
    anchor = inputs([1]).tobytes()
    assert [each.failed for each in failed_roots([anchor] * len(failures), failures)] == [wanted]
    said = [RootUpdates(1, updates([1]).entries, {root: failure}) for failure in failures]
    assert fold(said)[0].failed == wanted
    back = fold(from_arrow(pa.Table.from_batches([*map(to_arrow, said)]).to_batches()))
    assert back[0].failed == wanted


def test_a_bolts_inputs_add_the_consumer_edges_it_owns() -> None:
    rows = inputs([1, 2])
    rows["edge"] = [77, 78]
    (own,) = own_values(rows, READERS[:1])
    assert own.entries["value"].tolist() == emitted_values(rows["edge"].copy(), READERS[:1]).tolist()
    (nothing,) = own_values(rows, ())
    assert not nothing.entries["value"].any()
