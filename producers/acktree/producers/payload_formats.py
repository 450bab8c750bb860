"""How a bolt reads and writes values: as text, JSON, objects of a class, or by a format of the user's own.

Invariant: keys, tombstones and bytes stay what they are. A value that cannot be read is never tried again; a
service that a format needs and that does not answer is no tuple's fault, and stops the worker. After Kafka
Streams' Serdes and Faust's models.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import pydantic_core
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from acktree.producers.errors import BadHandler, Misuse, NotSerializable, Reject
from acktree.producers.tuples import Tuple
from acktree.schemas.errors import AcktreeError

_MAX_ERRORS = 3
_MAX_SHOWN_CHARS = 200


class Undecodable(Reject):
    """A value is not what the bolt's ``reads_as`` says; the tuple fails and is never tried again."""


class NoFormat(Misuse):
    """``payload`` was asked for in a bolt without ``reads_as``."""


class FormatUnavailable(AcktreeError):
    """What a format needs, such as a Schema Registry, does not answer or refuses; the worker stops."""


class PayloadFormat(ABC):
    """A way to read and write values; all calls come from the thread that executes tuples."""

    def prepare(self) -> None:  # noqa: B027 (most formats need nothing)
        """Open what reading and writing need; called once, before the first tuple."""

    @abstractmethod
    def decode(self, value: bytes, topic: str) -> Any:
        """Return what a value of a topic says.

        Raises:
            ValueError: it is malformed: its tuple fails and is never tried again. Any other error fails the
                tuple like one of the bolt's own.
            FormatUnavailable: that is not known at present.
        """

    @abstractmethod
    def encode(self, payload: Any, topic: str) -> bytes:
        """Return the value to write to a topic; raise anything if the payload is of another kind.

        Raises:
            FormatUnavailable: that is not known at present.
        """


class Text(PayloadFormat):
    """UTF-8 text, as ``str``."""

    def decode(self, value: bytes, topic: str) -> str:
        return value.decode()

    def encode(self, payload: Any, topic: str) -> bytes:
        if not isinstance(payload, str):
            raise TypeError(f"not text but {type(payload).__name__}")
        return payload.encode()


class Json(PayloadFormat):
    """JSON as Python's own dict, list, str and numbers; models and dataclasses can be written, too.

    >>> Json().decode(b'{"n": 1}', ""), Json().encode({"n": [1, None]}, "")
    ({'n': 1}, b'{"n":[1,null]}')
    """

    def decode(self, value: bytes, topic: str) -> Any:
        return pydantic_core.from_json(value)

    def encode(self, payload: Any, topic: str) -> bytes:
        return pydantic_core.to_json(payload)


class Typed(PayloadFormat):
    """JSON as objects of a type that pydantic knows: a model, a dataclass, a TypedDict, a list of these."""

    def __init__(self, kind: Any) -> None:
        """Raises BadHandler for a type that pydantic cannot read."""
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            text = str(error).partition("\n")[0]
            raise BadHandler(
                f"values cannot be read as {_name(kind)}: {text}; use a pydantic model, a dataclass, a "
                "TypedDict, or a PayloadFormat of your own"
            ) from error
        self.kind = kind

    def decode(self, value: bytes, topic: str) -> Any:
        return self._adapter.validate_json(value)

    def encode(self, payload: Any, topic: str) -> bytes:
        return self._adapter.dump_json(payload, warnings="error")


def format_of(declared: Any) -> PayloadFormat | None:
    """Return the format of ``reads_as`` or ``emits_as``: None and ``bytes`` mean none, ``str`` is Text.

    Raises:
        BadHandler: it is neither a format nor a type that pydantic can read.
    """
    if declared is None or declared is bytes:
        return None
    if isinstance(declared, PayloadFormat):
        return declared
    if isinstance(declared, type) and issubclass(declared, PayloadFormat):
        return declared()
    return Text() if declared is str else Typed(declared)


class Formats:
    """What one bolt reads and writes; ``fatal`` raises an error that is no tuple's fault."""

    def __init__(
        self, reads: Any = None, emits: Any = None, fatal: Callable[[Exception], NoReturn] | None = None
    ):
        """``emits`` is one format, or one by topic. Raises BadHandler."""
        self.reads = format_of(reads)
        by_topic = emits if isinstance(emits, Mapping) else {None: emits}
        found = {topic: format_of(each) for topic, each in by_topic.items()}
        self.emits = {topic: each for topic, each in found.items() if each is not None}
        self._fatal = fatal

    def prepare(self) -> None:
        """Open what the formats need. Raises FormatUnavailable, BadHandler, MissingExtra."""
        for each in {id(each): each for each in (self.reads, *self.emits.values()) if each}.values():
            each.prepare()

    def read(self, tup: Tuple) -> Any:
        """Return the payload of a tuple, None of a tombstone.

        Raises:
            Undecodable: its value is malformed. NoFormat: the bolt says nothing about its values.
        """
        if self.reads is None:
            raise NoFormat("payload is known only to a bolt that has reads_as; its value is in tup.value")
        value = tup.value
        if value is None:
            return None
        try:
            return self.reads.decode(value, tup.topic)
        except FormatUnavailable as error:
            self._stop(error)
        except ValueError as error:
            place = f"{tup.topic}/{tup.partition}/{tup.offset}"
            raise Undecodable(f"the value of {place} cannot be read: {short(error)}") from error

    def written(self, payload: Any, topic: str) -> Any:
        """Return the value for a payload that is emitted to a topic. Raises NotSerializable."""
        if payload is None or payload.__class__ is bytes:
            return payload
        own = self.emits.get(topic, self.emits.get(None))
        if own is None:
            return payload
        try:
            return own.encode(payload, topic)
        except FormatUnavailable as error:
            self._stop(error)
        except Exception as error:
            kind = type(payload).__name__
            raise NotSerializable(f"a {kind} cannot be written to {topic!r}: {short(error)}") from error

    def column(self, payloads: Sequence[Any], topic: str) -> list[Any]:
        """Return the values of a column; what cannot be written stays, and is refused where it is sent."""
        return [self._written_or_same(payload, topic) for payload in payloads]

    def _written_or_same(self, payload: Any, topic: str) -> Any:
        try:
            return self.written(payload, topic)
        except NotSerializable:
            return payload

    def _stop(self, error: FormatUnavailable) -> NoReturn:
        if self._fatal is not None:
            self._fatal(error)
        raise error


def short(error: Exception) -> str:
    """Return an error in one line; of a ValidationError the first fields that are wrong.

    >>> try:
    ...     TypeAdapter(dict[str, int]).validate_json(b'{"n": "x"}')
    ... except ValidationError as error:
    ...     short(error)
    'n: Input should be a valid integer, unable to parse string as an integer'
    """
    if isinstance(error, ValidationError):
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        parts = [f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in errors]
        more = f"; and {len(parts) - _MAX_ERRORS} more" if len(parts) > _MAX_ERRORS else ""
        return "; ".join(parts[:_MAX_ERRORS]) + more
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or repr(kind)
