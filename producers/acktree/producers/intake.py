"""What an input record's header means to one bolt: its anchors, untracked, or set aside.

Invariant: a record whose header is broken or names an unknown version is refused whole; a bolt that does not
read the topic in the version of the emission owns no edge of the record and handles it untracked.
"""

from collections.abc import Callable

from acktree.producers.tuples import Record
from acktree.schemas.header import HEADER, decode_header, find_header
from acktree.schemas.registry import History

_SINGLE_BYTES = 21
_NO_ROOT = b"\0" * 8

Learn = Callable[[int], None]


class Intake:
    """Reads tuple headers for one bolt; headers of one anchor and known versions take the short way."""

    def __init__(self, bolt: str, history: History, learn: Learn = lambda _version: None) -> None:
        """``learn`` is asked for a version not seen yet; it may add it to the history."""
        self._bolt = bolt
        self._history = history
        self._learn = learn
        self._tracked: dict[str | None, dict[bytes, bool]] = {}

    def anchors_of(self, record: Record) -> bytes:
        """Return the anchors of a record as in its header, 18 bytes each, empty if it is untracked here.

        Raises:
            MalformedRecord: the header is broken.
            UnknownVersion: it names a version that is not published.
        """
        headers = record.headers()
        if not headers:
            return b""
        header = headers[-1][1] if headers[-1][0] == HEADER else find_header(headers)
        if header is None:
            return b""
        topic = record.topic()
        known = self._tracked.get(topic) or self._tracked.setdefault(topic, {})
        tracked = known.get(header[:5])
        if tracked is None or len(header) != _SINGLE_BYTES or header[5:13] == _NO_ROOT:
            tracked = self._check(topic or "", header)
        return header[3:] if tracked else b""

    def _check(self, topic: str, header: bytes) -> bool:
        """Check a header in full and tell whether this bolt owns edges of it."""
        version, anchors = decode_header(header)
        for needed in {version, *(anchor.version for anchor in anchors)}:
            if needed not in self._history.versions:
                self._learn(needed)
            self._history.at(needed)
        tracked = self._bolt in self._history.readers(version, topic).names
        if len(anchors) == 1:
            self._tracked[topic][header[:5]] = tracked
        return tracked
