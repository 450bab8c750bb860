"""Make a PNG small: 256 colours at most, which a page of text and lines hardly has more of."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

COLOURS = 256
SIGNATURE = b"\x89PNG\r\n\x1a\n"

Bytes = NDArray[np.uint8]


def small_png(png: bytes) -> bytes:
    """Return a PNG of 8 bits a channel, not interlaced, with a palette; rare colours become the nearest."""
    width, height, channels, packed = _read(png)
    pixels = _unfilter(zlib.decompress(packed), width, height, channels)[:, :, :3].reshape(-1, 3)
    found, where, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts)
    palette = found[order[:COLOURS]].astype(np.int16)
    nearest = [np.abs(palette - colour).sum(axis=1).argmin() for colour in found.astype(np.int16)]
    rows = np.array(nearest, np.uint8)[where.reshape(-1)].reshape(height, width)
    lines = np.hstack([np.zeros((height, 1), np.uint8), rows])
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [(b"IHDR", head), (b"PLTE", palette.astype(np.uint8).tobytes())]
    parts += [(b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _read(png: bytes) -> tuple[int, int, int, bytes]:
    """Return width, height, channels and the compressed picture."""
    width = height = channels = 0
    packed, at = b"", len(SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, bits, colour, *_, interlaced = struct.unpack(">IIBBBBB", data)
            channels = {2: 3, 6: 4}[colour]
            assert (bits, interlaced) == (8, 0)
        elif kind == b"IDAT":
            packed += data
        at += size + 12
    return width, height, channels, packed


def _unfilter(data: bytes, width: int, height: int, channels: int) -> Bytes:
    lines = np.frombuffer(data, np.uint8).reshape(height, 1 + width * channels)
    above = np.zeros((width, channels), np.uint8)
    rows = []
    for line in lines:
        above = _row(int(line[0]), line[1:].reshape(width, channels), above)
        rows.append(above)
    return np.array(rows)


def _row(kind: int, line: Bytes, above: Bytes) -> Bytes:
    """Return a row, of which each byte was written as the difference to a guess from its neighbours."""
    if kind < 3:
        return (line, np.cumsum(line, axis=0, dtype=np.uint8), line + above)[kind]
    row, left, corner = line.copy(), [0] * line.shape[1], [0] * line.shape[1]
    for x, (written, up) in enumerate(zip(line.tolist(), above.tolist(), strict=True)):
        guess = map(_average if kind == 3 else _paeth, left, up, corner)
        left, corner = [(a + b) % 256 for a, b in zip(written, guess, strict=True)], up
        row[x] = left
    return row


def _average(left: int, up: int, _corner: int) -> int:
    return (left + up) // 2


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))
