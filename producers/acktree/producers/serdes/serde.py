"""Reads and writes a bolt's values by a Serde, as in Kafka Streams: JSON, text, or a custom one.

Invariant: a bolt's declaration is checked when the bolt is made, not with the first record. A tombstone never
reaches a Serde, and no reason given here contains the value itself, which may be secret.
"""

import json
from collections.abc import Callable
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from acktree.core.kafka.settings import Settings
from acktree.producers.errors import BadHandler
from acktree.producers.tuples import Headers

Deserialize = Callable[[bytes, str, Headers], Any]
Serialize = Callable[[Any, str], bytes]

MAX_FIELDS = 3
"""A reason names no more fields than these."""


class Serde:
    """Reads and writes values; a subclass overrides ``deserialize``, ``serialize`` or both.

    A ValueError of ``deserialize`` rejects the tuple. Any other exception fails it like an exception of the
    bolt, and so does any exception of ``serialize``.

    >>> class Reversed(Serde):
    ...     def deserialize(self, value, topic, headers):
    ...         return value[::-1]
    """

    def deserialize(self, value: bytes, topic: str, headers: Headers) -> Any:
        """Return the decoded value of a record. Raises ValueError if it cannot be decoded."""
        raise NotImplementedError

    def serialize(self, payload: Any, topic: str) -> bytes:
        """Return the encoded value. Any exception means that it cannot be encoded."""
        raise NotImplementedError

    def deserializer(self, settings: Settings) -> Deserialize:
        """Return what reads values; called once, at the start of a worker with its client settings."""
        return self.deserialize

    def serializer(self, settings: Settings) -> Serialize:
        """Return what writes values; called once, at the start of a worker with its client settings."""
        return self.serialize

    def __str__(self) -> str:
        return type(self).__name__


class Json(Serde):
    """JSON: anything that ``json`` reads, or values of a type: a pydantic model, a dataclass, ``list[int]``.

    A value is validated by its type when it is read and before it is written, by alias if the type has any.

    >>> Json(dict[str, int]).deserialize(b'{"n": "x"}', "words", [])
    Traceback (most recent call last):
    ValueError: n: Input should be a valid integer, unable to parse string as an integer
    """

    def __init__(self, type_: Any = None) -> None:
        """Raises BadHandler for a type that pydantic does not know."""
        self._typed = None if type_ is None else Typed(type_)

    def deserialize(self, value: bytes, topic: str, headers: Headers) -> Any:
        """Return the value's content. Raises ValueError."""
        if self._typed is None:
            return json.loads(value.decode(), parse_constant=_refuse_constant)
        return self._typed.from_json(value)

    def serialize(self, payload: Any, topic: str) -> bytes:
        """Return JSON without blanks. Raises ValueError, TypeError."""
        if self._typed is None:
            text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            return text.encode()
        return self._typed.to_json(payload)

    def __str__(self) -> str:
        return "JSON" if self._typed is None else f"JSON of {self._typed.name}"


class Text(Serde):
    """Text in UTF-8."""

    def deserialize(self, value: bytes, topic: str, headers: Headers) -> str:
        """Return the text. Raises UnicodeDecodeError."""
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{error.reason} at byte {error.start}") from None

    def serialize(self, payload: Any, topic: str) -> bytes:
        """Return the text's bytes. Raises TypeError, UnicodeEncodeError."""
        if not isinstance(payload, str):
            raise TypeError(f"text must be a str, not {type(payload).__name__}")
        return payload.encode()

    def __str__(self) -> str:
        return "UTF-8 text"


class Raw(Serde):
    """Bytes as they are."""

    def deserialize(self, value: bytes, topic: str, headers: Headers) -> bytes:
        """Return the value."""
        return value

    def serialize(self, payload: Any, topic: str) -> bytes:
        """Return the value: bytes never come here. Raises TypeError."""
        raise TypeError(f"a value must be bytes, not {type(payload).__name__}")

    def __str__(self) -> str:
        return "bytes"


class Typed:
    """A type as pydantic validates it."""

    def __init__(self, type_: Any) -> None:
        """Raises BadHandler for a type that pydantic does not know."""
        self.name = getattr(type_, "__name__", None) or str(type_)
        try:
            self.adapter: TypeAdapter[Any] = TypeAdapter(type_)
        except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError) as error:
            raise BadHandler(
                f"values cannot be read as {self.name}: give a pydantic model, a dataclass, another type "
                f"that pydantic knows, or a Serde: {error}"
            ) from error

    def from_json(self, value: bytes) -> Any:
        """Return an instance. Raises ValueError, which names the fields and not what they hold."""
        try:
            return self.adapter.validate_json(value)
        except ValidationError as error:
            raise ValueError(_fields(error)) from None

    def from_python(self, found: Any) -> Any:
        """Return an instance made of a dict. Raises ValueError, as ``from_json``."""
        try:
            return self.adapter.validate_python(found)
        except ValidationError as error:
            raise ValueError(_fields(error)) from None

    def to_json(self, payload: Any) -> bytes:
        """Return JSON of an instance, or of what makes one. Raises ValueError."""
        return self.adapter.dump_json(self.from_python(payload), by_alias=True, warnings="error")

    def to_python(self, payload: Any) -> Any:
        """Return dicts and lists of an instance, or of what makes one. Raises ValueError."""
        return self.adapter.dump_python(self.from_python(payload), by_alias=True, warnings="error")


def as_serde(declared: Any) -> Serde:
    """Return the Serde of a declaration: one, a class of one, ``bytes``, ``str``, or a type that is JSON.

    Raises:
        BadHandler: it is none of these.

    >>> str(as_serde(str)), str(as_serde(Json)), str(as_serde(dict[str, int]))
    ('UTF-8 text', 'JSON', 'JSON of dict')
    """
    if isinstance(declared, Serde):
        return declared
    if isinstance(declared, type) and issubclass(declared, Serde):
        try:
            return declared()
        except TypeError as error:
            raise BadHandler(f"{declared.__name__} needs arguments here: {error}") from error
    if declared is bytes:
        return Raw()
    if declared is str:
        return Text()
    return Json(declared)


def _fields(error: ValidationError) -> str:
    """Return which fields are wrong, and how, without their values."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    texts = [f"{'.'.join(map(str, entry['loc'])) or 'value'}: {entry['msg']}" for entry in found[:MAX_FIELDS]]
    more = len(found) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")
