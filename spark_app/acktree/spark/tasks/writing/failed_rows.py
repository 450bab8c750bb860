"""Reads rows with a reason in the column ``fail``: why their roots fail, and when they are retried, if ever.

Invariant: the columns ``retry`` and ``retry_after_s`` accept the same values as a worker's
``collector.fail``. A row with any other value fails with the mistake in its reason, and fails no other row.
"""

import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from acktree.producers.collecting.retry_rules import RetryRules
from acktree.producers.errors import InvalidRetry
from acktree.spark.tasks.writing.anchoring import RootFailure

log = logging.getLogger("acktree.spark")


def failures_of(rows: pa.RecordBatch, rules: RetryRules) -> list[RootFailure]:
    """Return why and how each row fails; all of ``rows`` have a reason in ``fail``.

    A null in ``retry`` is true, one in ``retry_after_s`` is the spout's back-off.
    """
    reasons = rows.column("fail").to_pylist()
    retries, delays = _cells(rows, "retry"), _cells(rows, "retry_after_s")
    if retries is None and delays is None:
        return [RootFailure(reason) for reason in reasons]
    nulls = [None] * len(rows)
    said = zip(reasons, retries or nulls, delays or nulls, strict=True)
    failures = [_failure(rules, *of_row) for of_row in said]
    misused = [failure for failure, is_misuse in failures if is_misuse]
    if misused:
        text = "%d rows fail as usual, because column retry or retry_after_s is invalid; the first: %s"
        log.warning(text, len(misused), misused[0].reason, extra={"action": "misuse"})
    return [failure for failure, _ in failures]


def _cells(rows: pa.RecordBatch, name: str) -> Sequence[Any] | None:
    """Return a column, None if there is none or all of it is null."""
    if name not in rows.schema.names or rows.column(name).null_count == len(rows):
        return None
    cells: list[Any] = rows.column(name).to_pylist()
    return cells


def _failure(rules: RetryRules, reason: str, retry: bool | None, after_s: Any) -> tuple[RootFailure, bool]:
    """Return a row's failure, and whether it is of a row that says what nobody may say."""
    try:
        return RootFailure(reason, rules.of_call(True if retry is None else retry, after_s)), False
    except InvalidRetry as error:
        return RootFailure(f"InvalidRetry: column {error} ({reason})"), True
