"""The kept inputs of each target: one line of hexadecimal digits an input, in a text file a target.

Invariant: what is kept stays; an input is added only if it reaches what none before it does.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
MAX_INPUTS, MAX_INPUT_BYTES = 120, 600


def read(target: str) -> list[bytes]:
    """Return the inputs of a target."""
    path = CORPUS / f"{target}.txt"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Keep these inputs of a target."""
    (CORPUS / f"{target}.txt").write_text("".join(f"{data.hex()}\n" for data in inputs))


def grown(run: Callable[[bytes], None], kept: list[bytes], inputs: Iterable[bytes]) -> list[bytes]:
    """Return the inputs kept and, the shortest first, those that take new steps from line to line."""
    known = {step for data in kept for step in reached(run, data)}
    kept = [*kept]
    for data in sorted({*inputs}, key=lambda data: (len(data), data)):
        steps = reached(run, data) if len(data) <= MAX_INPUT_BYTES else set()
        if not steps <= known and len(kept) < MAX_INPUTS:
            known |= steps
            kept.append(data)
    return kept


def reached(run: Callable[[bytes], None], data: bytes) -> set[Any]:
    """Return the steps from line to line of the product, with how often in powers of two.

    None for an input that breaks the target: it is added by whoever mends that.
    """
    counts: dict[Any, int] = {}

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        file = frame.f_code.co_filename
        if "/acktree/" not in file:
            return None
        before = 0

        def line(frame: FrameType, _event: str, _argument: object) -> Any:
            nonlocal before
            step = (file, before, frame.f_lineno)
            counts[step], before = counts.get(step, 0) + 1, frame.f_lineno
            return line

        return line

    sys.settrace(enter)
    try:
        run(data)
    except Exception:
        return set()
    finally:
        sys.settrace(None)
    return {(*step, min(count.bit_length(), 3)) for step, count in counts.items()}
