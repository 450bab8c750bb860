"""Encodes finished trees as Result records: one per spout task and fold, split to fit a Kafka message.

Invariant: every finished root is in exactly one Result; no record is larger than about 900 kB. Pure.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from acktree.acker.folding.table import FinishedTrees, TimedOut
from acktree.wire.batch_codec import Integers
from acktree.wire.codec import encode_result
from acktree.wire.control_records import Cause, Failure, Result, split_by_stack
from acktree.wire.ids import IdArray

MAX_IDS = 50_000
MAX_FAILURES = 100


class EncodedResult(NamedTuple):
    """The bytes of one Result, for one spout task."""

    spout_task: int
    value: bytes


def encode_finished(partition: int, finished: FinishedTrees) -> Iterator[EncodedResult]:
    """Yield the Results of one fold."""
    # Life of an ack, step 10.
    for task, roots in _by_task(finished.acked, finished.acked_tasks):
        for start in range(0, len(roots), MAX_IDS):
            yield EncodedResult(task, encode_result(Result(partition, roots[start : start + MAX_IDS])))
    failures: dict[int, list[Failure]] = {}
    for root, task, reason in finished.failed:
        failures.setdefault(task, []).append(Failure(root, Cause.FAILED, *reason))
    for task, failed in failures.items():
        yield from _encode_failures(partition, task, failed, MAX_FAILURES)


def encode_timed_out(partition: int, timed_out: TimedOut) -> Iterator[EncodedResult]:
    """Yield the Results of timed-out roots."""
    for task, roots in _by_task(timed_out.roots, timed_out.tasks):
        failed = [Failure(root, Cause.TIMED_OUT, "", "") for root in roots.tolist()]
        yield from _encode_failures(partition, task, failed, MAX_IDS)


def _encode_failures(partition: int, task: int, failed: list[Failure], limit: int) -> Iterator[EncodedResult]:
    for same_stack in split_by_stack(failed, limit):
        yield EncodedResult(task, encode_result(Result(partition, failed=same_stack)))


def _by_task(roots: IdArray, tasks: Integers) -> Iterator[tuple[int, IdArray]]:
    """Yield each spout task with its roots, in the order they finished."""
    if not len(roots):
        return
    if (tasks == tasks[0]).all():
        yield int(tasks[0]), roots
        return
    for task in np.unique(tasks).tolist():
        yield task, roots[tasks == task]
