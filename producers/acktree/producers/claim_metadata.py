"""A spout's claim as the ASCII metadata of one committed offset: ``1|epoch|run|floors|crc``.

Invariant: decoding gives back what was encoded or raises; one altered character is noticed. Pure.
Floors are written as runs with their slots, ``7:0-99+104,9:100``: four thousand slots fit as long as few runs
stand among them.
"""

import re
from collections.abc import Iterable, Mapping
from zlib import crc32

from acktree.producers.errors import ClaimTooLarge, MalformedClaim
from acktree.schemas.ids import MAX_RUN, MAX_SLOTS

FORMAT = 1
MAX_CHARACTERS = 4_000
"""Kafka's default limit (offset.metadata.max.bytes) is 4,096, some brokers count one less."""

_SHAPE = re.compile(r"1\|(\d{1,18})\|(\d{1,3})\|([0-9:,+-]*)\|([0-9a-f]{8})", re.ASCII)


def encode_claim(epoch: int, run: int, floors: Mapping[int, int]) -> str:
    """Return the metadata of a claim; ``floors`` maps a slot to the run below which its results are ignored.

    >>> encode_claim(3, 9, {0: 7, 1: 7, 4: 9})
    '1|3|9|7:0-1,9:4|52ba22da'

    Raises:
        ClaimTooLarge: more than MAX_CHARACTERS.
    """
    assert epoch >= 1, epoch
    assert 1 <= run <= MAX_RUN, run
    by_run: dict[int, list[int]] = {}
    for slot, floor in sorted(floors.items()):
        by_run.setdefault(floor, []).append(slot)
    written = ",".join(f"{floor}:{_ranges(slots)}" for floor, slots in sorted(by_run.items()))
    text = f"{FORMAT}|{epoch}|{run}|{written}"
    if len(text) + 9 > MAX_CHARACTERS:
        raise ClaimTooLarge(
            f"the floors of {len(floors)} source partitions take {len(text)} characters, at most "
            f"{MAX_CHARACTERS} fit into a commit; give the spout more tasks"
        )
    return f"{text}|{crc32(text.encode()):08x}"


def decode_claim(text: str) -> tuple[int, int, dict[int, int]]:
    """Return (epoch, run, floors) of what ``encode_claim`` wrote.

    Raises:
        MalformedClaim: anything else, an altered character included.
    """
    match = _SHAPE.fullmatch(text)
    if match is None or f"{crc32(text[:-9].encode()):08x}" != match[4]:
        raise MalformedClaim(f"not a claim of a spout, or altered: {text[:60]!r}")
    epoch, run, floors = int(match[1]), int(match[2]), _floors(match[3])
    if not (epoch and 1 <= run <= MAX_RUN and all(1 <= floor <= MAX_RUN for floor in floors.values())):
        raise MalformedClaim(f"a claim with an epoch, run or floor out of range: {text[:60]!r}")
    return epoch, run, floors


def _ranges(slots: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for slot in slots:
        if spans and spans[-1][1] == slot - 1:
            spans[-1][1] = slot
        else:
            spans.append([slot, slot])
    return "+".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)


def _floors(text: str) -> dict[int, int]:
    floors: dict[int, int] = {}
    try:
        for part in text.split(",") if text else ():
            floor, spans = part.split(":")
            for span in spans.split("+"):
                first, _, last = span.partition("-")
                slots = range(int(first), int(last or first) + 1)
                if slots.stop > MAX_SLOTS:
                    raise MalformedClaim(f"a claim with slot {slots.stop - 1}, the last is {MAX_SLOTS - 1}")
                floors.update(dict.fromkeys(slots, int(floor)))
    except ValueError as error:
        raise MalformedClaim(f"a claim with unreadable floors: {text[:60]!r}") from error
    return floors
