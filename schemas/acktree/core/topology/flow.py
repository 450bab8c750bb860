"""Encodes whether a spout emits, as set by an operator in records of the registry topic beside the versions.

Pure. Invariant: the newest record of a spout counts, by its place in the log and not by a clock. An
unreadable record changes nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, ValidationError

KEY_PREFIX = "flow/"
FORMAT = 1


class Flow(StrEnum):
    """The flow of a spout: emits; emits nothing; emits no new records, only failed ones again."""

    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class SetFlow:
    """The flow of a spout, and the offset of the registry record that sets it; -1 if none does."""

    flow: Flow = Flow.RUNNING
    offset: int = -1
    time_ms: int = 0


def flow_figures(flow: SetFlow) -> dict[str, int]:
    """Return what a spout task reports: whether it is paused or drains, and which record it obeys."""
    return {"paused": int(flow.flow is not Flow.RUNNING), "flow_offset": flow.offset}


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    format: int = Field(ge=FORMAT, le=FORMAT)
    spout: str
    flow: str
    time_ms: int


def encode_flow(spout: str, flow: Flow, time_ms: int) -> tuple[bytes, bytes]:
    """Return key and value of the record that sets a spout's flow.

    >>> encode_flow("lines", Flow.PAUSED, 1)
    (b'flow/lines', b'{"format":1,"spout":"lines","flow":"paused","time_ms":1}')
    """
    document = _Document(format=FORMAT, spout=spout, flow=flow.value, time_ms=time_ms)
    return f"{KEY_PREFIX}{spout}".encode(), document.model_dump_json().encode()


def decode_flow(key: bytes, value: bytes | None, offset: int) -> tuple[str, SetFlow] | None:
    """Return (spout, flow) of a record of the registry topic at ``offset``, None for any other record.

    A tombstone takes back what was set.
    """
    if not key.startswith(KEY_PREFIX.encode()):
        return None
    if value is None:
        return key.removeprefix(KEY_PREFIX.encode()).decode("utf-8", "replace"), SetFlow(offset=offset)
    try:
        document = _Document.model_validate_json(value)
        flow = Flow(document.flow)
    except (ValidationError, ValueError):
        return None
    if key != f"{KEY_PREFIX}{document.spout}".encode():
        return None
    return document.spout, SetFlow(flow, offset, document.time_ms)
