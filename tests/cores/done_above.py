"""The metadata of a bolt's commit against the set of offsets that are done."""

from random import Random

from acktree.producers.collecting.arithmetic.done_above import (
    OWNER_BYTES,
    WINDOW_OFFSETS,
    decode_done,
    decode_owner,
    encode_done,
)
from cores.script import Core, Did, holds, same

MAX_CHARACTERS = 4_095
FAR = 2 * WINDOW_OFFSETS


def run_seed(draw: Random, did: Did) -> None:
    """Encode what is done, decode it, and damage it."""
    frontier = draw.choice((0, 1, 7, 2**31, 2**40))
    span = draw.choice((0, 1, 7, 8, 9, 40))
    open_offsets = sorted(frontier + o for o in range(span) if draw.random() < draw.choice((0.1, 0.9, 1)))
    end = frontier + span
    if draw.random() < 0.02:
        edge = frontier + WINDOW_OFFSETS
        end = edge + draw.choice((-1, 0, 1, FAR))
        open_offsets += [o for o in (edge - 2, edge - 1, edge, edge + 9) if o < end and draw.random() < 0.5]
    owner = draw.randbytes(OWNER_BYTES) if draw.random() < 0.5 else b""
    did("encode_done", frontier, end, open_offsets, owner)
    text = encode_done(frontier, end, open_offsets, owner)
    holds("it fits", text.isascii() and len(text) <= MAX_CHARACTERS)
    same("owner", decode_owner(text, frontier), owner)
    done, window = decode_done(text, frontier), range(frontier, min(end, frontier + WINDOW_OFFSETS))
    near = {*window[:60], *window[-3:], frontier - 1, end, end + 1, frontier + WINDOW_OFFSETS}
    claimed = {offset for offset in near if done is not None and done.holds(offset)}
    same("done", claimed, {offset for offset in near if offset in window and offset not in open_offsets})
    same("elsewhere", decode_done(text, frontier + 1), None)
    if text:
        at, flip = draw.randrange(len(text)), draw.randint(1, 127)
        damaged = text[:at] + chr(ord(text[at]) ^ flip) + text[at + 1 :]
        did("damage", damaged)
        same("damaged", (decode_done(damaged, frontier), decode_owner(damaged, frontier)), (None, b""))


CORE = Core(run_seed)
