"""The offset JSON of a batch."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.producers.ledger.logged_batch import (
    MAX_REPLAYS,
    CheckpointMismatch,
    PlannedBatch,
    Range,
    Replays,
    group_replays,
)
from acktree.producers.ledger.partitions.retries import Replay
from acktree.producers.spouts.driver.sources.log_bounds import check_offsets
from acktree.wire.ids import OffsetTooLarge

EMPTY = PlannedBatch(1, ()).to_json()
OFFSETS = st.sets(st.integers(0, 2**40), min_size=1, max_size=20).map(lambda s: tuple(sorted(s)))


@given(st.lists(OFFSETS, max_size=4))
def test_a_batch_survives_its_json(groups: list[tuple[int, ...]]) -> None:
    batch = PlannedBatch(
        3,
        (Range("lines", 0, 0, 2, 10, 20, 100), Range("lines", 1, 1, 2, 5, 5)),
        tuple(Replays("lines", 0, 0, 33 + i, i, offsets) for i, offsets in enumerate(groups)),
        (Range("lines", 1, 1, 3, 0, 4),),
        number=7 << 32,
    )
    assert PlannedBatch.from_json(json.loads(json.dumps(batch.to_json()))) == batch
    assert batch.records == 14 + sum(map(len, groups))


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
    assert len(json.dumps(PlannedBatch(1, (), replays).to_json())) < 100_000


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"index": 1},
        EMPTY | {"format": 9},
        EMPTY | {"ranges": [[1]]},
        EMPTY | {"replays": [[]]},
        *({key: EMPTY[key] for key in EMPTY.keys() - {missing}} for missing in EMPTY),
    ],
)
def test_a_checkpoint_of_another_source_is_a_clear_error(data: dict[str, object]) -> None:
    with pytest.raises(CheckpointMismatch, match="checkpoint"):
        PlannedBatch.from_json(data)


def test_a_group_without_replays_is_logged_as_it_was_read() -> None:
    batch = PlannedBatch(1, (), (Replays("t", 0, 0, 17, 1, ()),))
    assert PlannedBatch.from_json(batch.to_json()) == batch


def test_offsets_too_large_for_root_ids_are_refused_before_a_batch_is_planned() -> None:
    fits = Range("lines", 2, 0, 1, 2**40 - 5, 2**40)
    check_offsets(PlannedBatch(1, (fits,)))
    message = r"lines/2 has reached offset 1099511627776, .* \(40 bits\).* new topic.*complete=batch"
    with pytest.raises(OffsetTooLarge, match=message):
        check_offsets(PlannedBatch(1, (fits._replace(end=2**40 + 1),)))
    with pytest.raises(OffsetTooLarge, match=message):
        check_offsets(PlannedBatch(1, (fits,), (Replays("lines", 2, 0, 17, 1, (3, 2**40)),)))
