"""User code of the upgrade check: a spout that counts, and a bolt that copies its numbers exactly once.

The spout keeps what is acked in a file, and emits what is not again when it starts.
"""

import os
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any

from acktree.producers.bolt import BasicBolt, Context, Emit
from acktree.producers.spout import Failure, Spout, SpoutEmitter
from acktree.producers.tuples import Tuple

PER_SECOND = 50
LIMIT = 1_000
"""So many numbers at most are pending."""


class CountUp(Spout):
    """Emits "<number> <a name of this emission>", and each number again until it is acked."""

    name = "numbers"

    def prepare(self, context: Context) -> None:
        folder = Path(os.environ["UPGRADE_FOLDER"])
        self.stop_file, self.begun_file = folder / "stop", folder / "begun"
        acked_file = folder / "acked"
        acked = {int(line) for line in acked_file.read_text().split()} if acked_file.exists() else set()
        self.next = int(self.begun_file.read_text()) if self.begun_file.exists() else 0
        self.again = deque(number for number in range(self.next) if number not in acked)
        self.acked = acked_file.open("a", buffering=1)
        self.pending: set[int] = set()
        self.next_s = time.monotonic()

    def next_tuple(self, emitter: SpoutEmitter) -> None:
        if self.again:
            self.emit(emitter, self.again.popleft())
        elif self.next_s <= time.monotonic() and len(self.pending) < LIMIT and not self.stop_file.exists():
            self.next_s += 1 / PER_SECOND
            self.next += 1
            new = self.begun_file.with_suffix(".new")
            new.write_text(str(self.next))
            new.replace(self.begun_file)
            self.emit(emitter, self.next - 1)

    def emit(self, emitter: SpoutEmitter, number: int) -> None:
        self.pending.add(number)
        emitter.emit(f"{number} {uuid.uuid4()}", number)

    def ack(self, message: Any) -> None:
        number = getattr(message, "id", message)  # an earlier version gives the id alone
        self.pending.discard(number)
        self.acked.write(f"{number}\n")

    def fail(self, message: Any, failure: Failure) -> None:
        number = getattr(message, "id", message)
        self.pending.discard(number)
        self.again.append(number)


class CopyNumbers(BasicBolt):
    """Emits what it reads."""

    name = "copy"

    def execute(self, tup: Tuple, emit: Emit) -> None:
        emit(tup.value)
