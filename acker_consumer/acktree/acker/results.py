"""Finished trees encoded as Result records: one per spout task and fold, split to fit a Kafka message.

Invariant: every finished root is in exactly one Result; no record is larger than about 900 kB. A root that
failed with a FailWithRetry is in a ResultWithRetry before that, and one whose failed tuple is known in a
ResultWithTuple before both; the first that a spout knows decides. Pure.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from acktree.acker.table import FinishedTrees, TimedOut
from acktree.schemas.batch_codec import Integers
from acktree.schemas.codec import encode_result, encode_result_with_retry, encode_result_with_tuple
from acktree.schemas.control_records import BACK_OFF, Cause, Failure, Result
from acktree.schemas.ids import IdArray

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
        for same_stack in _by_stack(failed):
            for start in range(0, len(same_stack), MAX_FAILURES):
                record = Result(partition, failed=same_stack[start : start + MAX_FAILURES])
                yield EncodedResult(task, encode_result_with_tuple(record))
        with_retry = [failure for failure in failed if failure.retry_after_ms != BACK_OFF]
        for start in range(0, len(with_retry), MAX_FAILURES):
            record = Result(partition, failed=with_retry[start : start + MAX_FAILURES])
            yield EncodedResult(task, encode_result_with_retry(record))
        yield from _encode_failures(partition, task, failed, MAX_FAILURES)


def _by_stack(failed: list[Failure]) -> Iterable[list[Failure]]:
    """Return the failures whose tuple is known, in one list for each stack trace."""
    lists: dict[str, list[Failure]] = {}
    for failure in failed:
        if failure.failed_tuple is not None:
            lists.setdefault(failure.failed_tuple.stack, []).append(failure)
    return lists.values()


def encode_timed_out(partition: int, timed_out: TimedOut) -> Iterator[EncodedResult]:
    """Yield the Results of timed-out roots."""
    for task, roots in _by_task(timed_out.roots, timed_out.tasks):
        failed = [Failure(root, Cause.TIMED_OUT, "", "") for root in roots.tolist()]
        yield from _encode_failures(partition, task, failed, MAX_IDS)


def _encode_failures(partition: int, task: int, failed: list[Failure], limit: int) -> Iterator[EncodedResult]:
    for start in range(0, len(failed), limit):
        yield EncodedResult(task, encode_result(Result(partition, failed=failed[start : start + limit])))


def _by_task(roots: IdArray, tasks: Integers) -> Iterator[tuple[int, IdArray]]:
    """Yield each spout task with its roots, in the order they finished."""
    if not len(roots):
        return
    if (tasks == tasks[0]).all():
        yield int(tasks[0]), roots
        return
    for task in np.unique(tasks).tolist():
        yield task, roots[tasks == task]
