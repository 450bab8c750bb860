"""The plan of a replay: pure, from what the cluster says."""

import pytest

from acktree.console.replay import NotReplayable, PartitionState, ReplayPlan, Wanted, plan_replay
from acktree.core.topology.registry import Published, Slot
from acktree.wire.codec import decode_replay_command, encode_replay_command
from acktree.wire.control_records import MAX_REPLAY_SPANS, SURE_REPLAY_SPANS, ReplayCommand, Span

SLOTS = [("a", "old", 0), ("a", "id", 0), ("a", "id", 1), ("b", "id-b", 0)]


def published() -> Published:
    slots = tuple(
        Slot(slot=n, spout="in", topic=topic, topic_id=topic_id, partition=partition)
        for n, (topic, topic_id, partition) in enumerate(SLOTS)
    )
    spouts = {"in": {"topics": ("a", "b"), "tasks": 2}, "fed": {}}
    tasks = {"in": (0, 1), "fed": (2,)}
    return Published.model_validate(
        {"name": "t", "version": 3, "spouts": spouts, "spout_tasks": tasks, "slots": slots}
    )


def plan(*spans: tuple[int, int], partition: int = 0, frontier: int | None = 100) -> ReplayPlan:
    standings = {
        ("a", 0): PartitionState("id", 10, 200, frontier),
        ("a", 1): PartitionState("other", 0, 5, 5),
        ("b", 0): PartitionState("id-b", 0, 0, None),
    }
    wanted = Wanted("a", partition, tuple(Span(*span) for span in spans))
    return plan_replay(published(), [wanted], standings)


def test_a_range_becomes_one_command_for_the_task_of_its_newest_slot() -> None:
    made = plan((20, 30))
    assert [(command.slot, command.result_topic, command.spans) for command in made.commands] == [
        (1, "t.spout-1", (Span(20, 30),))
    ]
    assert made.lines() == ["replay 10 offset(s) of a/0: 20 to 29"]
    assert not made.to_json()["executed"]


def test_spans_that_overlap_or_touch_are_joined_and_many_are_split() -> None:
    assert plan((30, 40), (20, 31), (40, 41), (60, 61)).commands[0].spans == (Span(20, 41), Span(60, 61))
    standings = {("a", 0): PartitionState("id", 0, 10_000, 10_000)}
    singles = tuple(Span(2 * n, 2 * n + 1) for n in range(MAX_REPLAY_SPANS + 1))
    made = plan_replay(published(), [Wanted("a", 0, singles)], standings)
    assert [len(command.spans) for command in made.commands] == [MAX_REPLAY_SPANS, 1]
    far = tuple(Span(n << 40, (n << 40) + 1) for n in range(SURE_REPLAY_SPANS + 1))
    standings = {("a", 0): PartitionState("id", 0, 1 << 60, 1 << 60)}
    made = plan_replay(published(), [Wanted("a", 0, far)], standings)
    assert [len(command.spans) for command in made.commands] == [SURE_REPLAY_SPANS, 1]
    for command in made.commands:
        decode_replay_command(encode_replay_command(ReplayCommand(command.slot, command.spans)))


def test_records_that_the_topic_no_longer_has_are_omitted_and_reported() -> None:
    made = plan((5, 300))
    assert made.commands[0].spans == (Span(10, 200),)
    assert [note.split(":")[0] for note in made.notes] == [
        "a/0 begins at 10",
        "a/0 ends before 200",
        "a/0 is done up to 100",
    ]


@pytest.mark.parametrize(
    ("topic", "partition", "span", "message"),
    [
        ("c", 0, (0, 1), "it must be one of: a, b"),
        ("", 0, (0, 1), "no spout"),
        ("a", 7, (0, 1), "it must be 0 to 1"),
        ("a", 1, (0, 1), "recreated"),
        ("b", 0, (0, 1), "holds no record"),
        ("a", 0, (3, 5), "none of 3 to 4"),
        ("a", 0, (5, 5), "TO is one past the last"),
    ],
)
def test_records_that_cannot_be_replayed_are_reported_in_one_sentence(
    topic: str, partition: int, span: tuple[int, int], message: str
) -> None:
    standings = {
        ("a", 0): PartitionState("id", 10, 200, None),
        ("a", 1): PartitionState("other", 0, 5, 5),
        ("b", 0): PartitionState("id-b", 0, 0, None),
    }
    with pytest.raises(NotReplayable, match=message):
        plan_replay(published(), [Wanted(topic, partition, (Span(*span),))], standings)
