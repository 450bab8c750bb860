"""A piece of work that takes WORK_S on a quiet machine of normal speed: the measure of slower ones."""

import json
import time

WORK_S = 0.016
"""CPU seconds that one piece takes on the machine that budgets and deadlines are for."""
TRIED_PIECES = 40
Rows = list[dict[str, object]]


def work(pieces: int = 1) -> None:
    """Do it so many times."""
    rows: Rows = [{"key": str(number), "values": [number, {"a": number % 7}]} for number in range(2000)]
    for _ in range(4 * pieces):
        rows = sorted(json.loads(json.dumps(rows)), key=lambda row: row["values"][1]["a"])


def slowness() -> float:
    """Return how many times longer than WORK_S a piece takes here now, by the clock."""
    began_s = time.perf_counter()
    work(TRIED_PIECES)
    return (time.perf_counter() - began_s) / (TRIED_PIECES * WORK_S)
