"""The committed offsets of a spout's group: no request is larger than a broker takes."""

from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from acktree.spark.driver.group_offsets import MAX_REQUEST_BYTES, OFFSET_BYTES, in_requests

BROKER_BYTES = 1_048_588
"""The default of a broker's message.max.bytes."""


@given(st.lists(st.integers(0, 300)), st.integers(1, 2_000))
def test_all_offsets_are_committed_in_order_and_no_request_is_larger_than_allowed(
    sizes: list[int], max_bytes: int
) -> None:
    offsets = [TopicPartition("t", number, 0, "x" * size) for number, size in enumerate(sizes)]
    requests = list(in_requests(offsets, max_bytes))
    assert [offset.partition for request in requests for offset in request] == list(range(len(sizes)))
    for request in requests:
        total = sum(OFFSET_BYTES + 1 + len(offset.metadata or "") for offset in request)
        assert total <= max_bytes or len(request) == 1


def test_a_thousand_partitions_with_full_metadata_fit_into_requests_that_a_broker_takes() -> None:
    offsets = [TopicPartition("t" * 249, number, 0, "x" * 4_096) for number in range(1_000)]
    assert all(len(request) * 5_000 < BROKER_BYTES for request in in_requests(offsets))
    assert MAX_REQUEST_BYTES < BROKER_BYTES
