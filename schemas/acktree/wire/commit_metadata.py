"""Encodes the metadata of a committed offset: parts, and a checksum that proves that acktree wrote them.

Invariant: text that another client wrote, or that was damaged or committed at another offset, is never
accepted. ASCII only: zero bytes have come back as garbage from brokers and clients (librdkafka issue 4876).
"""

import zlib
from collections.abc import Collection


def seal(*parts: object, about: str = "") -> str:
    """Return parts as text with a checksum of them, and of ``about``, which the reader knows.

    >>> unseal(seal("mine-1", 7, "x"), ("mine-1",), 3)
    ['mine-1', '7', 'x']
    """
    body = "|".join(map(str, parts))
    return f"{body}|{_checksum(body, about)}"


def unseal(text: str, tags: Collection[str], count: int, about: str = "") -> list[str] | None:
    """Return the ``count`` parts of text whose first one is among ``tags``, None if it is not ours."""
    body, _, checksum = text.rpartition("|")
    parts = body.split("|")
    if len(parts) != count or parts[0] not in tags or not body.isascii():
        return None
    return parts if checksum == _checksum(body, about) else None


def _checksum(body: str, about: str) -> str:
    return f"{zlib.crc32((about + body).encode()):08x}"
