"""A batch as Spark logs it: the end offset alone describes everything the batch reads.

Invariant: the JSON is canonical and whole: ranges with their starts, replays, generations, topology version.
Reading depends on nothing else, so a batch logged before a crash is read again exactly as it was planned.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from acktree.producers.ledger.partitions.retries import Replay
from acktree.wire.errors import AcktreeError

FORMAT = 1
NUMBER_BITS = 32
"""A batch's number is its driver's term and, in this many bits, its place among those of that driver."""
MAX_REPLAYS = 5_000
MAX_RANGES_PER_SLOT = 200


class CheckpointMismatch(AcktreeError):
    """The checkpoint holds an offset that this version, or this source, cannot read."""


class Range(NamedTuple):
    """Offsets [start, end) of one slot, emitted as the first attempt of ``run``.

    A root stands for a block of them: they are cut at start and at multiples of ``block``.
    """

    topic: str
    partition: int
    slot: int
    run: int
    start: int
    end: int
    block: int = 1


class Replays(NamedTuple):
    """Records of one slot that are emitted again under one generation, each with its own root."""

    topic: str
    partition: int
    slot: int
    generation: int
    attempts: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One planned batch; every slot has at least one range, an empty one if nothing is new.

    ``again`` are ranges that replay commands ask for. ``number`` is above those of all batches that the
    spout's drivers have planned before, whatever their checkpoint; a bolt's are 0.
    """

    version: int
    ranges: tuple[Range, ...]
    replays: tuple[Replays, ...] = ()
    again: tuple[Range, ...] = ()
    number: int = 0

    @property
    def term(self) -> int:
        """Return the term of the driver that has planned it."""
        return self.number >> NUMBER_BITS

    @property
    def records(self) -> int:
        """Return how many offsets the batch covers."""
        fresh = sum(range_.end - range_.start for range_ in (*self.ranges, *self.again))
        return fresh + sum(len(replays.offsets) for replays in self.replays)

    def without_records(self) -> "PlannedBatch":
        """Return a batch that ends where this one starts."""
        return PlannedBatch(self.version, tuple(range_._replace(end=range_.start) for range_ in self.ranges))

    def to_json(self) -> dict[str, Any]:
        """Return the dict whose JSON text Spark logs; offsets of replays are delta coded."""
        return {
            "format": FORMAT,
            "version": self.version,
            "ranges": [list(range_) for range_ in self.ranges],
            "replays": [[*each[:-1], _deltas(each.offsets)] for each in self.replays],
            "again": [list(range_) for range_ in self.again],
            "number": self.number,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PlannedBatch":
        """Return the batch that was logged; raise CheckpointMismatch for anything else."""
        try:
            if data["format"] != FORMAT:
                raise CheckpointMismatch(
                    f"the checkpoint holds offsets of format {data['format']}, this version reads {FORMAT}; "
                    "start with a new checkpoint: progress is kept on the state topic"
                )
            ranges = tuple(Range(*fields) for fields in data["ranges"])
            replays = tuple(Replays._make((*each[:-1], _sums(each[-1]))) for each in data["replays"])
            again = tuple(Range(*fields) for fields in data["again"])
            return cls(data["version"], ranges, replays, again, number=int(data["number"]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise CheckpointMismatch(
                "the checkpoint was written by another source; give this query its own checkpoint"
            ) from error


def group_replays(topic: str, partition: int, slot: int, replays: Iterable[Replay]) -> list[Replays]:
    """Return a slot's replays by generation and attempts, offsets in order."""
    groups: dict[tuple[int, int], list[int]] = {}
    for replay in replays:
        groups.setdefault((replay.generation, replay.attempts), []).append(replay.offset)
    return [Replays(topic, partition, slot, *key, tuple(sorted(groups[key]))) for key in sorted(groups)]


def _deltas(offsets: tuple[int, ...]) -> list[int]:
    return [offset - before for before, offset in zip((0, *offsets), offsets, strict=False)]


def _sums(deltas: list[int]) -> tuple[int, ...]:
    offsets, total = [], 0
    for delta in deltas:
        total += delta
        offsets.append(total)
    return tuple(offsets)
