"""The anchors of the tuples that a bolt in Spark reads, as they go into the column ``anchors``.

Invariant: a tuple is tracked only where this bolt was a reader in the version the tuple was emitted in; a
broken header is told in the log with its coordinates, and its tuple goes on untracked.
"""

import logging
import os
from typing import Any

from confluent_kafka import Message

from acktree.schemas.clients import Settings
from acktree.schemas.errors import MalformedRecord, UnknownVersion
from acktree.schemas.header import decode_header, find_header
from acktree.schemas.registry import History, read_history

HEAD_BYTES = 3

log = logging.getLogger("acktree.spark")


class BoltAnchors:
    """Checks headers against the registry, which is read again when a version is not known yet."""

    def __init__(self, bootstrap: str, topology: str, bolt: str, user: Settings) -> None:
        self._place = (bootstrap, topology, user)
        self._bolt = bolt
        self._history: History = read_history(*self._place)

    def of(self, message: Message) -> bytes | None:
        """Return the anchors of a tuple, 18 bytes each; None where it is not tracked for this bolt."""
        data = find_header(message.headers())  # type: ignore[arg-type]
        if data is None or len(data) <= HEAD_BYTES:
            return None
        try:
            version = decode_header(data).version
            topic = message.topic() or ""
            if version not in self._history.versions:
                self._history = read_history(*self._place)
            is_reader = self._bolt in self._history.at(version).readers_of(topic)
        except (MalformedRecord, UnknownVersion) as reason:
            place = f"{message.topic()}/{message.partition()}/{message.offset()}"
            log.warning("%s goes on untracked: %s", place, reason, extra={"action": "set_aside"})
            return None
        return data[HEAD_BYTES:] if is_reader else None


_known: dict[tuple[Any, ...], BoltAnchors] = {}


def bolt_anchors(bootstrap: str, topology: str, bolt: str, user: Settings) -> BoltAnchors:
    """Return this process's reader of a bolt's anchors."""
    place = (os.getpid(), bootstrap, topology, bolt, tuple(sorted(user.items())))
    if place not in _known:
        _known[place] = BoltAnchors(bootstrap, topology, bolt, user)
    return _known[place]
