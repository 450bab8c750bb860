"""Which edges are open is computed from their sum, and a guess is never called a fact."""

from functools import reduce
from operator import xor

from hypothesis import given, settings
from hypothesis import strategies as st

from acktree.console.view.records.open_edges import MAX_UNIQUE, Certainty, find_open
from acktree.wire.ids import mix

EDGES = st.lists(st.integers(1, 2**64 - 1), unique=True, min_size=1, max_size=40)


def random_edges(count, seed=1):
    return [mix(seed * 1_000_003 + index) for index in range(count)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, MAX_UNIQUE), st.data())
def test_every_subset_of_a_few_edges_is_found_by_its_sum(count, data):
    edges = random_edges(count, data.draw(st.integers(1, 2**40)))
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(count)))))
    found = find_open(reduce(xor, (edges[index] for index in chosen), 0), edges)
    assert (sorted(found.indexes), found.certainty) == (chosen, Certainty.EXACT)


def test_one_and_two_open_edges_are_found_among_many():
    edges = random_edges(5_000)
    assert find_open(edges[4_321], edges).indexes == (4_321,)
    assert set(find_open(edges[7] ^ edges[4_000], edges).indexes) == {7, 4_000}


def test_three_open_edges_among_many_are_called_ambiguous():
    edges = random_edges(500)
    found = find_open(edges[1] ^ edges[2] ^ edges[3], edges)
    assert (found.indexes, found.certainty) == ((), Certainty.AMBIGUOUS)


def test_only_likely_edges_are_tried_where_there_are_too_many():
    edges = random_edges(500)
    found = find_open(edges[1] ^ edges[2] ^ edges[3], edges, likely=[0, 1, 2, 3, 9])
    assert (found.indexes, found.certainty) == ((1, 2, 3), Certainty.EXACT)


def test_the_edge_of_a_tuple_that_was_not_found_is_missing():
    edges = random_edges(10)
    assert find_open(edges[0] ^ 12345, edges).certainty is Certainty.MISSING
    assert find_open(5, []).certainty is Certainty.MISSING


def test_a_sum_of_zero_is_a_tree_that_is_done():
    assert find_open(0, random_edges(3)) == find_open(0, [])
    assert find_open(0, []).certainty is Certainty.EXACT
