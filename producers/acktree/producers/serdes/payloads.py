"""Opens the Serdes of one bolt, which read its values and write its objects, topic by topic.

Invariant: a value that cannot be read raises NotDeserializable, which is never retried; an unavailable
registry never causes it. A value that cannot be written is refused like any other misuse, so that its tuple
fails even if the bolt swallows the exception.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from acktree.core.kafka.settings import Settings
from acktree.core.user_code import text_of
from acktree.producers.errors import (
    BadHandler,
    NotDeserializable,
    NotSerializable,
    RegistryUnavailable,
)
from acktree.producers.serdes.serde import Deserialize, Raw, Serde, Serialize, as_serde
from acktree.producers.tuples import Record
from acktree.wire.header import read_headers

Declared = Mapping[str | None, Serde]
"""Serdes by topic; None: of all topics."""


def _raise(error: Exception) -> NoReturn:
    raise error


class Payloads:
    """Reads the values of one bolt, and writes those it emits."""

    def __init__(self, reads: Declared, emits: Declared, settings: Settings) -> None:
        """Open the Serdes. Raises MissingExtra, RefusedSetting: see their docstrings."""
        reads = {topic: serde for topic, serde in reads.items() if type(serde) is not Raw}
        self.reads = bool(reads)
        """Whether values are read by a Serde at all; bytes need none."""
        self.writes = bool(emits)
        """Whether objects are written by a Serde at all."""
        self.raise_fatal: Callable[[Exception], NoReturn] = _raise
        """Takes an error that no tuple caused."""
        self._readers: dict[str | None, tuple[Deserialize, Serde]] = {
            topic: (serde.deserializer(settings), serde) for topic, serde in reads.items()
        }
        self._writers: dict[str | None, tuple[Serialize, Serde]] = {
            topic: (serde.serializer(settings), serde) for topic, serde in emits.items()
        }

    def read(self, record: Record) -> Any:
        """Return a record's payload; None for a tombstone, the value itself without a Serde of its topic.

        Raises:
            NotDeserializable: the value cannot be read.
            UnknownSchema: the registry does not have the schema of the value.
            Any other error of the Serde's: it says nothing about the value, and the tuple is tried again.
            RegistryUnavailable, after ``raise_fatal``: the registry does not answer.
        """
        value = record.value()
        if value is None:
            return None
        topic = record.topic() or ""
        found = self._readers.get(topic) or self._readers.get(None)
        if found is None:
            return value
        deserialize, serde = found
        try:
            return deserialize(value, topic, read_headers(record))
        except RegistryUnavailable as error:
            self.raise_fatal(error)
        except (ValueError, RecursionError) as error:
            place = f"{topic}[{record.partition()}]@{record.offset()}"
            raise NotDeserializable(
                f"the value of {place} cannot be decoded as {serde}: {_text(error)}"
            ) from error

    def write(self, value: Any, topic: str) -> Any:
        """Return the bytes of an object to emit; bytes and None, and all without a Serde, stay as they are.

        Raises:
            NotSerializable: the Serde cannot write it.
            RegistryUnavailable, after ``raise_fatal``: the registry does not answer.
        """
        if value is None or isinstance(value, bytes) or not self.writes:
            return value
        found = self._writers.get(topic) or self._writers.get(None)
        if found is None:
            return value
        serialize, serde = found
        try:
            written = serialize(value, topic)
        except RegistryUnavailable as error:
            self.raise_fatal(error)
        except Exception as error:
            kind = type(value).__name__
            raise NotSerializable(
                f"a {kind} for {topic} cannot be encoded as {serde}: {_text(error)}"
            ) from error
        if not isinstance(written, bytes):
            raise NotSerializable(
                f"{serde} returned {type(written).__name__} for {topic}; it must return bytes"
            )
        return written

    def write_rows(self, values: list[Any], topic: str) -> tuple[list[Any], dict[int, NotSerializable]]:
        """Return a column written, and the error of each row that cannot be; its value is None."""
        written, bad = [], {}
        for row, value in enumerate(values):
            try:
                written.append(self.write(value, topic))
            except NotSerializable as error:
                bad[row] = error
                written.append(None)
        return written, bad


NO_PAYLOADS = Payloads({}, {}, {})
"""Of a bolt that declares nothing: values are bytes."""


def find_serdes(declared: Any, what: str, topics: Collection[str] | None = None) -> Declared:
    """Return the Serdes of a bolt's ``reads_as`` or ``emits_as``, which ``what`` names; none for None.

    Raises:
        BadHandler: a declaration is no Serde and no type, or is one of a topic that is not in ``topics``.
    """
    if declared is None:
        return {}
    if not isinstance(declared, Mapping):
        return {None: as_serde(declared)}
    for topic in declared:
        if not isinstance(topic, str) or (topics is not None and topic not in topics):
            names = ", ".join(topics or ()) or "none"
            raise BadHandler(
                f"{what} names {topic!r}, which is not a topic of the bolt in the topology: {names}"
            )
    return {topic: as_serde(serde) for topic, serde in declared.items()}


def topics_of(declared: Any) -> tuple[str, ...]:
    """Return the topics that a bolt's ``reads_as`` or ``emits_as`` names; none if it is for all topics."""
    return tuple(declared) if isinstance(declared, Mapping) else ()


def _text(error: Exception) -> str:
    """Return an error's text, with its type unless that is a plain ValueError.

    >>> _text(ValueError("n: Field required")), _text(KeyError("n"))
    ('n: Field required', "KeyError: 'n'")
    """
    text = text_of(error)
    return text if type(error) is ValueError and text else f"{type(error).__name__}: {text}"
