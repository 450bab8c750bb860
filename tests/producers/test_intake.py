"""What a header means to a bolt: tracked, untracked, or rejected."""

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.errors import UnknownVersion
from acktree.core.topology.registry import History
from acktree.producers.worker.executing.intake import Intake
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import HEADER, Anchor, decode_header, encode_header
from producers.trees import published

GOOD = encode_header(1, [Anchor(1, 5, 6)])


def intake(load_version=lambda _version: None) -> tuple[Intake, History]:
    history = History("t", {1: published(1, one=(["a"], []))})
    return Intake("one", history, load_version), history


def record(header: bytes | None, topic: str = "a") -> Message:
    return Message(topic=topic, partition=0, offset=0, headers=None if header is None else [(HEADER, header)])


TWO_ANCHORS = st.just(encode_header(1, [Anchor(1, 5, 6), Anchor(9, 5, 6)]))
LIKE_OURS = st.binary(max_size=60).map(lambda rest: GOOD[:5] + rest)


@given(st.one_of(st.binary(max_size=60), LIKE_OURS, TWO_ANCHORS))
def test_any_bytes_are_anchors_or_refused_with_and_without_a_warm_cache(header):
    for warm in (False, True):
        read, _ = intake()
        if warm:
            assert read.anchors_of(record(GOOD)) == GOOD[3:]
        try:
            anchors = read.anchors_of(record(header))
        except (MalformedRecord, UnknownVersion):
            continue
        decoded = decode_header(header)
        assert anchors == header[3:]
        assert {decoded.version, *(anchor.version for anchor in decoded.anchors)} == {1}


OTHER_TREE = st.integers(1, 2**64 - 1).map(lambda root: encode_header(1, [Anchor(1, root, 6)]))
ANY_HEADER = st.one_of(st.none(), st.binary(max_size=60), LIKE_OURS, TWO_ANCHORS, OTHER_TREE)


@given(st.lists(OTHER_TREE, max_size=5), st.lists(ANY_HEADER, max_size=2), st.sampled_from(["a", "b"]))
def test_anchors_read_by_columns_equal_those_read_record_by_record(good, more, topic):
    read, _ = intake()
    for warm in ("a", "b"):
        read.anchors_of(record(GOOD, warm))
    batch = [record(header) for header in good] + [record(header, topic) for header in more]
    anchors = read.single_anchors(batch)
    if anchors is not None:
        assert anchors == [read.anchors_of(one) for one in batch]
        assert all(anchors)
    else:
        assert not good or more


@pytest.mark.parametrize(
    "strange",
    [
        encode_header(1, [Anchor(1, 0, 6)]),
        encode_header(2, [Anchor(1, 5, 6)]),
        encode_header(1, [Anchor(2, 5, 6)]),
        b"\x02" + GOOD[1:],
        encode_header(1, []),
        None,
    ],
)
def test_one_unusual_record_disables_the_fast_path_of_its_batch(strange):
    read, _ = intake()
    read.anchors_of(record(GOOD))
    assert read.single_anchors([record(GOOD), record(GOOD)]) == [GOOD[3:]] * 2
    assert read.single_anchors([record(GOOD), record(strange)]) is None


@pytest.mark.parametrize(
    "headers", [None, [], [("other", b"x")], [(HEADER, None)], [(HEADER, b"\x01\x01\0")]]
)
def test_a_record_without_anchors_is_untracked(headers):
    read, _ = intake()
    assert read.anchors_of(Message(topic="a", headers=headers)) == b""


def test_a_header_of_root_zero_is_rejected_even_if_its_versions_are_known():
    read, _ = intake()
    read.anchors_of(record(GOOD))
    with pytest.raises(MalformedRecord):
        read.anchors_of(record(encode_header(1, [Anchor(1, 0, 6)])))


def test_the_last_of_several_headers_counts():
    read, _ = intake()
    two = Message(topic="a", headers=[(HEADER, b"broken"), (HEADER, GOOD), ("other", b"x")])
    assert read.anchors_of(two) == GOOD[3:]


@pytest.mark.parametrize("header", [encode_header(2, [Anchor(1, 5, 6)]), encode_header(1, [Anchor(2, 5, 6)])])
def test_an_unknown_version_is_loaded(header):
    asked: list[int] = []
    read, history = intake(asked.append)
    with pytest.raises(UnknownVersion):
        read.anchors_of(record(header))
    history.versions[2] = published(2, one=(["a"], []))
    assert read.anchors_of(record(header)) == header[3:]
    assert asked == [2]


def test_each_topic_has_its_own_readers():
    read, _ = intake()
    assert read.anchors_of(record(GOOD, "a"))
    assert read.anchors_of(record(GOOD, "elsewhere")) == b""
    assert read.anchors_of(record(GOOD, "a"))
