"""A Python spout that offers what it is given, and whose worker emits again what failed."""

from typing import Any

from acktree.producers import Spout


class Offers(Spout):
    """Emits each message once; records what was acked, and what was given up."""

    retry = True

    def __init__(self, *messages: str) -> None:
        self.waiting = list(messages)
        self.acked: list[Any] = []
        self.ended: list[Any] = []

    def next_tuple(self, emitter):
        if self.waiting:
            value = self.waiting.pop(0)
            emitter.emit(value, value)

    def ack(self, message):
        self.acked.append(message.id)

    def gave_up(self, message, failure):
        self.ended.append(message.id)
