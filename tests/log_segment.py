"""Edits the file in which a broker keeps the log of a partition; record batches have format v2."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER = struct.Struct(">qi")
"""The first offset of a batch, and how many bytes of it follow."""
ATTRIBUTES_AND_LAST = struct.Struct(">hi")
ATTRIBUTES_AT = 21
IS_CONTROL = 0x20
REBUILT = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot")
"""What a broker makes again of a log where it is missing."""


class BatchInFile(NamedTuple):
    """A batch of records, or the marker of a transaction, and its bytes [start, end) in the file."""

    first: int
    last: int
    is_control: bool
    start: int
    end: int


class LogSegment:
    """The only segment of a log in the folder of a broker."""

    def __init__(self, folder: Path, topic: str, partition: int) -> None:
        (self._file,) = folder.rglob(f"{topic}-{partition}/*.log")
        self._data = self._file.parent.parent

    def batches(self, start: int = 0) -> list[BatchInFile]:
        """Return the batches with records at offset ``start`` and behind it."""
        return [each for each in self._all() if each.first >= start and not each.is_control]

    def _all(self) -> Iterator[BatchInFile]:
        content, at = self._file.read_bytes(), 0
        while at < len(content):
            first, size = HEADER.unpack_from(content, at)
            attributes, more = ATTRIBUTES_AND_LAST.unpack_from(content, at + ATTRIBUTES_AT)
            end = at + HEADER.size + size
            yield BatchInFile(first, first + more, bool(attributes & IS_CONTROL), at, end)
            at = end

    def damage(self, batch: BatchInFile) -> None:
        """Flip the bits of the last byte of a batch; its broker may run."""
        with self._file.open("r+b") as file:
            file.seek(batch.end - 1)
            (byte,) = file.read(1)
            file.seek(batch.end - 1)
            file.write(bytes([byte ^ 0xFF]))

    def cut(self, start: int) -> None:
        """Cut off a batch and all behind it; its broker was killed, and recovers the log when it starts."""
        at = next(each.start for each in self._all() if each.first == start)
        with self._file.open("r+b") as file:
            file.truncate(at)
        for pattern in REBUILT:
            for each in self._file.parent.glob(pattern):
                each.unlink()
        for name in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
            (self._data / name).unlink(missing_ok=True)
