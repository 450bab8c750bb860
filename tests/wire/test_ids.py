"""Ids: the bijection, the layout of a root id, serial runs, consumer edges, unsigned remainders."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.wire import ids

U64 = st.integers(0, 2**64 - 1)
EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]


@given(U64)
def test_unmix_inverts_mix(x: int) -> None:
    assert ids.unmix(ids.mix(x)) == x
    assert ids.mix(ids.unmix(x)) == x


def test_mix_is_the_splitmix64_finalizer() -> None:
    gamma = 0x9E3779B97F4A7C15
    assert [ids.mix(gamma * n % 2**64) for n in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@given(st.lists(U64))
def test_arrays_agree_with_scalars(xs: list[int]) -> None:
    array = np.array(xs, np.uint64)
    assert ids.mix_array(array).tolist() == [ids.mix(x) for x in xs]
    assert ids.unmix_array(array).tolist() == [ids.unmix(x) for x in xs]


@given(st.integers(0, 4095), st.integers(1, 255), st.integers(0, 40), st.integers(0, 2**40 - 1))
def test_a_root_id_gives_its_origin(slot: int, run: int, attempt: int, offset: int) -> None:
    generation = ids.generation_of(run, attempt)
    root = ids.root_id(slot, generation, offset)
    assert root != 0
    assert ids.origin_of(root) == (slot, generation, offset)
    assert ids.origin_of(root).run == run
    assert ids.origin_of(root).attempt == attempt % 16
    assert ids.root_ids(slot, generation, np.array([offset])).tolist() == [root]
    slots, generations, offsets = ids.origins_of(np.array([root], np.uint64))
    assert (slots[0], generations[0], offsets[0]) == (slot, generation, offset)


@pytest.mark.parametrize("root", EXTREMES)
@pytest.mark.parametrize("ackers", [1, 2, 3, 7, 64])
def test_the_partition_is_the_unsigned_remainder(root: int, ackers: int) -> None:
    signed = root - 2**64 if root >= 2**63 else root
    assert ids.acker_partition(root, ackers) == root % ackers
    assert ids.acker_partition(signed, ackers) == root % ackers
    assert int(np.uint64(root) % np.uint64(ackers)) == root % ackers


def test_run_numbers_wrap_around_without_zero() -> None:
    run, seen = 1, []
    for _ in range(255):
        seen.append(run)
        run = ids.next_run(run)
    assert seen == list(range(1, 256))
    assert run == 1


@given(st.integers(1, 255), st.integers(0, 127))
def test_runs_compare_in_serial_number_arithmetic(floor: int, steps: int) -> None:
    run = floor
    for _ in range(steps):
        run = ids.next_run(run)
    assert ids.run_at_least(run, floor)
    assert ids.run_at_least(floor, run) == (steps == 0)


@given(st.integers(1, 255), st.integers(0, 254), st.integers(0, 254))
def test_a_run_is_between_two_others_in_cyclic_order(floor: int, span: int, steps: int) -> None:
    newest = run = floor
    for _ in range(span):
        newest = ids.next_run(newest)
    for _ in range(steps):
        run = ids.next_run(run)
    assert ids.is_run_between(run, floor, newest) == (steps <= span)


@given(U64, st.lists(st.text(min_size=1), unique=True, max_size=4))
def test_the_emitters_edge_is_the_sum_of_its_consumers_edges(edge: int, bolts: list[str]) -> None:
    hashes = tuple(map(ids.fnv1a64, bolts))
    value = ids.emitted_value(edge, hashes)
    assert ids.emitted_values(np.array([edge], np.uint64), hashes).tolist() == [value]
    for bolt_hash in hashes:
        value ^= ids.consumer_edge(edge, bolt_hash)
    assert value == 0


def test_fnv1a64_matches_its_published_vectors() -> None:
    assert ids.fnv1a64("") == 0xCBF29CE484222325
    assert ids.fnv1a64("foobar") == 0x85944171F73967E8


@pytest.mark.parametrize("offset", [ids.MAX_OFFSET + 1, 2**62])
def test_an_offset_too_large_for_a_root_id_is_refused_and_named(offset: int) -> None:
    generation = ids.generation_of(1, 0)
    with pytest.raises(ids.OffsetTooLarge, match=f"offset {offset} of slot 3 does not fit into a root id"):
        ids.root_id(3, generation, offset)
    with pytest.raises(ids.OffsetTooLarge, match=f"offset {offset} of slot 3 .* write to a new topic"):
        ids.root_ids(3, generation, np.array([7, offset]))
    largest = ids.root_ids(3, generation, np.array([ids.MAX_OFFSET]))
    assert ids.origin_of(int(largest[0])) == (3, generation, ids.MAX_OFFSET)
