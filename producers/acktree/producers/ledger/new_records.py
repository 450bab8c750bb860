"""Plans the first emissions of a spout's tasks: the limit of a batch is divided among them. Pure.

Invariant: no task keeps another one waiting forever: the unused part of a quota goes to those with more.
"""

from collections.abc import Collection, Mapping

from acktree.producers.ledger.logged_batch import Range
from acktree.producers.ledger.quotas import in_turn, quota_of
from acktree.producers.ledger.task import TaskLedger


def emit_new(
    tasks: Collection[TaskLedger], ends: Mapping[int, int], room: int, limit: int | None, now_s: float
) -> list[Range]:
    """Emit new offsets below the ends per slot, each slot with a range.

    ``room`` is how many records a task may have pending, ``limit`` how many all of them emit, if any.
    """
    by_number = {task.task: task for task in tasks}
    allowed = {number: max(0, room - task.pending) for number, task in by_number.items()}
    wanted = {
        number: min(sum(task.wanted(ends).values()), allowed[number]) for number, task in by_number.items()
    }
    left = sum(wanted.values()) if limit is None else limit
    turn = sum(task.turn(limit) for task in tasks)
    ranges: list[Range] = []
    for place, number in enumerate(in_turn(wanted, left, turn)):
        quota = min(allowed[number], quota_of(left, len(wanted) - place))
        fresh = by_number[number].emit(ends, quota if limit is not None else allowed[number], now_s, limit)
        left -= sum(range_.end - range_.start for range_ in fresh)
        ranges += fresh
    return ranges
