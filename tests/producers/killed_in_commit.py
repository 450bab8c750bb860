"""An exactly-once worker process that kills itself with SIGKILL at a chosen point of its third commit.

python killed_in_commit.py BOOTSTRAP TOPOLOGY POINT
"""

import os
import signal
import sys
import threading
from typing import Any

from acktree.producers import BasicBolt
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.worker.loop import Worker

POINTS = ("before the offsets", "before the commit", "in the commit", "after the commit")
SOON_S = 0.001


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KilledInCommit:
    """Delegates everything to a producer until the point is reached."""

    def __init__(self, producer: Any, point: str) -> None:
        self._producer, self._point, self._commits = producer, point, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        self._commits += 1
        self._die_at("before the offsets")
        self._producer.send_offsets_to_transaction(*arguments)
        self._die_at("before the commit")

    def commit_transaction(self, *arguments: Any) -> None:
        if self._commits == 3 and self._point == "in the commit":
            threading.Timer(SOON_S, die).start()
        self._producer.commit_transaction(*arguments)
        self._die_at("after the commit")

    def _die_at(self, point: str) -> None:
        if self._commits == 3 and self._point == point:
            die()


class PassUntilKilled(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value)


def main() -> None:
    bootstrap, topology, point = sys.argv[1:]
    user = {"session.timeout.ms": "6000", "transaction.timeout.ms": "600000"}
    output = ExactlyOnce(bootstrap, user, f"{topology}.first")
    output.commit_records = 100
    output.producer = KilledInCommit(output.producer, point)  # type: ignore[assignment]
    Worker(bootstrap, topology, PassUntilKilled(), name="first", user=user, output=output).run()


if __name__ == "__main__":
    main()
