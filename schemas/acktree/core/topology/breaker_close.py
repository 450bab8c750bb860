"""Encodes an operator's request to close a spout's breaker: a record beside the versions.

Pure. Invariant: it closes breakers that are open when a process first reads it, and no later ones.
"""

from pydantic import BaseModel, ConfigDict, Field, ValidationError

KEY_PREFIX = "breaker/"
FORMAT = 1


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    format: int = Field(ge=FORMAT, le=FORMAT)
    spout: str
    time_ms: int


def encode_breaker_close(spout: str, time_ms: int) -> tuple[bytes, bytes]:
    """Return key and value of the record that closes a spout's breakers.

    >>> encode_breaker_close("lines", 1)
    (b'breaker/lines', b'{"format":1,"spout":"lines","time_ms":1}')
    """
    document = _Document(format=FORMAT, spout=spout, time_ms=time_ms)
    return f"{KEY_PREFIX}{spout}".encode(), document.model_dump_json().encode()


def decode_breaker_close(key: bytes, value: bytes | None) -> str | None:
    """Return the spout whose breakers are to close, None for any other record."""
    if not key.startswith(KEY_PREFIX.encode()) or value is None:
        return None
    try:
        document = _Document.model_validate_json(value)
    except (ValidationError, ValueError):
        return None
    return document.spout if key == f"{KEY_PREFIX}{document.spout}".encode() else None
