"""The report that every process sends to ``T.stats`` every STATS_INTERVAL_S: one small JSON object.

Invariant: a report describes one process at one time; losing or repeating one does no harm.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from acktree.wire.errors import MalformedRecord

STATS_INTERVAL_S = 2.0
ROOT_AGE = "root_age_s."
"""Before a pending root, 16 hexadecimal digits: its age in an acker's report."""
LIMITED_BY, LIMITED_AT, BEHIND, SINCE_COMMIT = "limited_by.", "limited_at.", "behind_s.", "since_commit_s."
"""Before a spout in an acker's report: the bolt that its trees wait for, the partition that holds this bolt,
how far the bolt is behind, and for how long it has committed nothing of the partition."""
STARTING = "starting"
"""In the report of a process that does no work of its component yet."""
ENGINE, SPARK = "engine", "spark"
"""In the reports of a spout's driver that runs in Spark; one in Python names no engine."""
STOPPED = "stopped"
"""In the last report of a driver in Spark that stops in order: from then on it does not run."""
DRIVER = "driver"
"""The role of a report without figures: that a driver of a spout starts or has stopped."""
OLDEST_ROOTS = 20
"""An acker reports the ages of its oldest pending roots, at most this many."""

LARGEST = 10**15
"""A number in a report lies below this, on either side of 0; JSON keeps such a number whole."""

Value = int | float | str


@dataclass(frozen=True, slots=True)
class Report:
    """One process's figures: ``role`` is spout, bolt or acker, ``component`` its name in the topology."""

    role: str
    component: str
    instance: str
    time_ms: int
    values: Mapping[str, Value]

    def key(self) -> bytes:
        return f"{self.role}/{self.component}/{self.instance}".encode()

    def encode(self) -> bytes:
        fields = {
            "role": self.role,
            "component": self.component,
            "instance": self.instance,
            "time_ms": self.time_ms,
            "values": dict(self.values),
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def decode_report(data: bytes) -> Report:
    """Return the report in data; raise MalformedRecord where it names no process or time.

    Its figures are numbers below LARGEST and texts that can be written as UTF-8; others are left out.
    """
    try:
        report = Report(**json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"not a report: {error}") from error
    names = report.role, report.component, report.instance
    if not all(isinstance(name, str) and _is_utf8(name) for name in names):
        raise MalformedRecord("not a report: a name is not text")
    if type(report.time_ms) is not int or not 0 <= report.time_ms < LARGEST:
        raise MalformedRecord("not a report: time_ms is not a time in whole milliseconds")
    if not isinstance(report.values, dict):
        raise MalformedRecord("not a report: values are not an object")
    shown = {name: value for name, value in report.values.items() if _is_utf8(name) and _is_value(value)}
    return replace(report, values=shown)


def _is_value(value: object) -> bool:
    if isinstance(value, str):
        return _is_utf8(value)
    return type(value) in (int, float) and abs(cast(float, value)) < LARGEST


def _is_utf8(text: str) -> bool:
    """Return whether a text can be encoded; JSON may hold half of a surrogate pair, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
