"""The report that every process sends to ``T.stats`` every STATS_INTERVAL_S: one small JSON object.

Invariant: a report describes one process at one time; losing or repeating one does no harm.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from acktree.schemas.errors import MalformedRecord

STATS_INTERVAL_S = 2.0

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
    """Return the report in data; raise MalformedRecord for anything else."""
    try:
        fields = json.loads(data)
        report = Report(**fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedRecord(f"not a report: {error}") from error
    texts = (report.role, report.component, report.instance)
    if not (all(isinstance(text, str) for text in texts) and isinstance(report.values, dict)):
        raise MalformedRecord("not a report: a field has the wrong type")
    if not isinstance(report.time_ms, int):
        raise MalformedRecord("not a report: time_ms is not a whole number")
    return report
