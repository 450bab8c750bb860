"""The first bolt: checks a line and adds its price."""

import json

from acktree.producers import BasicBolt, Emit, Tuple

CENTS = {"tea": 450, "coffee": 700, "cup": 1200}


class PriceLines(BasicBolt):
    """Emits each line with its price; an exception fails the order."""

    name = "price"

    def execute(self, tup: Tuple, emit: Emit) -> None:
        line = json.loads(tup.value or b"")
        article, quantity = line.get("article"), line.get("quantity") or 0
        if article not in CENTS:
            raise ValueError(f"unknown article {article!r}")
        if quantity < 1:
            raise ValueError(f"quantity {quantity} of {article!r}")
        emit(json.dumps({**line, "cents": quantity * CENTS[article]}).encode(), key=tup.key)
