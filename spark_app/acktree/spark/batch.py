"""A batch as Spark logs it: the end offset says alone everything the batch reads.

Invariant: the JSON is canonical and whole: ranges with their starts, replays, generations, topology version.
Reading depends on nothing else, so a batch logged before a crash is read again exactly as it was planned.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from acktree.schemas.errors import AcktreeError
from acktree.spark.ledger import Replay

FORMAT = 1
MAX_REPLAYS = 5_000
MAX_RANGES_PER_SLOT = 200


class CheckpointMismatch(AcktreeError):
    """The checkpoint holds an offset that this version, or this source, cannot read."""


class Range(NamedTuple):
    """Offsets [start, end) of one slot, emitted for the first time in ``run``."""

    topic: str
    partition: int
    slot: int
    run: int
    start: int
    end: int


class Replays(NamedTuple):
    """Offsets of one slot that are emitted again under one generation."""

    topic: str
    partition: int
    slot: int
    generation: int
    attempts: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """One planned batch; every slot has at least one range, an empty one where nothing is new."""

    version: int
    ranges: tuple[Range, ...]
    replays: tuple[Replays, ...] = ()

    @property
    def records(self) -> int:
        """Return how many offsets the batch covers."""
        fresh = sum(range_.end - range_.start for range_ in self.ranges)
        return fresh + sum(len(replays.offsets) for replays in self.replays)

    def to_json(self) -> dict[str, Any]:
        """Return the dict whose JSON text Spark logs; offsets of replays are delta coded."""
        return {
            "format": FORMAT,
            "version": self.version,
            "ranges": [list(range_) for range_ in self.ranges],
            "replays": [[*replays[:-1], _deltas(replays.offsets)] for replays in self.replays],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Batch":
        """Return the batch that was logged; raise CheckpointMismatch for anything else."""
        try:
            if data["format"] != FORMAT:
                raise CheckpointMismatch(
                    f"the checkpoint holds offsets of format {data['format']}, this version reads {FORMAT}; "
                    "start with a new checkpoint: what is done is kept in the consumer group"
                )
            ranges = tuple(Range(*fields) for fields in data["ranges"])
            replays = tuple(Replays._make((*fields[:-1], _sums(fields[-1]))) for fields in data["replays"])
            return cls(data["version"], ranges, replays)
        except (KeyError, TypeError) as error:
            raise CheckpointMismatch(
                "the checkpoint was written by another source; start this query with a checkpoint of its own"
            ) from error


def group_replays(topic: str, partition: int, slot: int, replays: Iterable[Replay]) -> list[Replays]:
    """Return a slot's replays by generation and attempts, offsets in order."""
    groups: dict[tuple[int, int], list[int]] = {}
    for replay in replays:
        groups.setdefault((replay.generation, replay.attempts), []).append(replay.offset)
    return [
        Replays(topic, partition, slot, generation, attempts, tuple(sorted(offsets)))
        for (generation, attempts), offsets in sorted(groups.items())
    ]


def _deltas(offsets: tuple[int, ...]) -> list[int]:
    return [offset - before for before, offset in zip((0, *offsets[:-1]), offsets, strict=True)]


def _sums(deltas: list[int]) -> tuple[int, ...]:
    offsets, total = [], 0
    for delta in deltas:
        total += delta
        offsets.append(total)
    return tuple(offsets)
