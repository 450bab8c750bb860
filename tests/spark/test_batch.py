"""The offset JSON of a batch."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.spark.batch import MAX_REPLAYS, Batch, CheckpointMismatch, Range, Replays, group_replays
from acktree.spark.ledger import Replay

OFFSETS = st.sets(st.integers(0, 2**40), min_size=1, max_size=20).map(lambda s: tuple(sorted(s)))


@given(st.lists(OFFSETS, max_size=4))
def test_a_batch_comes_back_from_its_json(groups: list[tuple[int, ...]]) -> None:
    batch = Batch(
        3,
        (Range("lines", 0, 0, 2, 10, 20), Range("lines", 1, 1, 2, 5, 5)),
        tuple(Replays("lines", 0, 0, 33 + i, i, offsets) for i, offsets in enumerate(groups)),
    )
    assert Batch.from_json(json.loads(json.dumps(batch.to_json()))) == batch
    assert batch.records == 10 + sum(map(len, groups))


def test_replays_are_grouped_by_generation_and_sorted() -> None:
    replays = [Replay(9, 17, 1), Replay(3, 17, 1), Replay(5, 18, 2)]
    assert group_replays("t", 0, 4, replays) == [
        Replays("t", 0, 4, 17, 1, (3, 9)),
        Replays("t", 0, 4, 18, 2, (5,)),
    ]


def test_the_fullest_batch_stays_under_a_hundred_kilobytes() -> None:
    replays = tuple(
        Replays("t", 0, 0, 17, 1, tuple(range(0, MAX_REPLAYS * 99_999, 99_999))) for _ in range(1)
    )
    assert len(json.dumps(Batch(1, (), replays).to_json())) < 100_000


@pytest.mark.parametrize(
    "data", [{}, {"format": 9}, {"index": 1}, {"format": 1, "version": 1, "ranges": [[1]]}]
)
def test_a_checkpoint_of_another_source_is_a_clear_error(data: dict[str, object]) -> None:
    with pytest.raises(CheckpointMismatch, match="checkpoint"):
        Batch.from_json(data)
