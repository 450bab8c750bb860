"""The tuple header: layout, and broken bytes refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.wire.errors import MalformedRecord
from acktree.wire.header import (
    SINGLE,
    Anchor,
    TupleHeader,
    decode_header,
    encode_header,
    find_header,
    single_headers,
)

U16 = st.integers(0, 2**16 - 1)
U64 = st.integers(1, 2**64 - 1)


@given(U16, st.lists(st.builds(Anchor, U16, U64, U64), max_size=10))
def test_a_decoded_header_equals_the_encoded_one(version: int, anchors: list[Anchor]) -> None:
    assert decode_header(encode_header(version, anchors)) == TupleHeader(version, tuple(anchors))


def test_the_layout_is_little_endian_and_packed() -> None:
    assert encode_header(0x0102, [Anchor(3, 4, 5)]).hex() == "010201030004000000000000000500000000000000"


@given(st.lists(st.tuples(U64, U64), min_size=1, max_size=20))
def test_many_single_headers_are_the_same_bytes(pairs: list[tuple[int, int]]) -> None:
    roots, edges = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    packed = single_headers(7, 6, roots, edges).tobytes()
    size = SINGLE.itemsize
    for index, (root, edge) in enumerate(pairs):
        assert packed[index * size : (index + 1) * size] == encode_header(7, [Anchor(6, root, edge)])


@given(st.binary(max_size=64))
def test_broken_headers_raise_no_other_error(data: bytes) -> None:
    try:
        header = decode_header(data)
    except MalformedRecord:
        return
    assert encode_header(*header) == data


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02\0\0", bytes([1, 0, 0]) + bytes(17)])
def test_wrong_format_or_length_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRecord):
        decode_header(data)


def test_root_zero_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="root id 0"):
        decode_header(encode_header(1, [Anchor(1, 0, 5)]))


def test_the_last_header_of_the_name_counts() -> None:
    assert find_header([("acktree", b"a"), ("x", b"b"), ("acktree", b"c")]) == b"c"
    assert find_header(None) is None
