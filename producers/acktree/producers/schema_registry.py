"""Values with a schema of a Schema Registry: Avro, Protobuf, JSON Schema, by confluent-kafka's serializers.

Invariant: a registry that does not answer, or refuses us, says nothing about a value: the worker stops, and
its records are read again. A schema that the registry does not know fails the tuple like any exception,
because it may come to know it. Needs the extra ``registry``.
"""

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from acktree.producers.errors import BadHandler, MissingExtra
from acktree.producers.payload_formats import FormatUnavailable, PayloadFormat, short
from acktree.schemas.errors import AcktreeError

URL = "SCHEMA_REGISTRY_URL"
"""The environment variable with the registry's address, where a format does not give it."""
_NOT_FOUND = 404
_MALFORMED = (EOFError, IndexError, OverflowError, struct.error)
"""What the serializers' libraries raise for bytes that a schema does not fit, beside ValueError."""

ToDict = Callable[[Any, Any], dict[str, Any]]
FromDict = Callable[[dict[str, Any], Any], Any]


class UnknownSchema(AcktreeError):
    """The registry has no schema of a value's id; the tuple fails and is tried again."""


class RegistryFormat(PayloadFormat):
    """The base of the formats of a Schema Registry.

    ``registry`` are settings of confluent-kafka's SchemaRegistryClient, such as ``url`` and
    ``basic.auth.user.info``; without any, the environment variable SCHEMA_REGISTRY_URL is the url.
    ``settings`` are those of its serializer, such as ``auto.register.schemas``.
    """

    def __init__(
        self, registry: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._registry, self._settings = dict(registry or {}), dict(settings or {})
        self._serializer: Any = None
        self._deserializer: Any = None

    def prepare(self) -> None:
        """Make the client; it asks the registry when the first schema is needed.

        Raises:
            MissingExtra: confluent-kafka's serializers need packages that are not installed.
            BadHandler: there is no url, or a setting or the schema is wrong.
        """
        conf = self._registry or {"url": os.environ.get(URL, "")}
        if not conf.get("url"):
            raise BadHandler(
                f"{type(self).__name__} needs a Schema Registry: set {URL}, or give "
                f"{type(self).__name__}(…, registry={{'url': …}})"
            )
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient

            with _clear_refusals():
                self._make(SchemaRegistryClient(conf))
        except ImportError as error:
            raise MissingExtra(
                f"{type(self).__name__} needs {error.name}: pip install 'acktree[registry]'"
            ) from error
        except (TypeError, ValueError) as error:
            raise BadHandler(f"{type(self).__name__}: {short(error)}") from error

    def _make(self, client: Any) -> None:
        """Make serializer and deserializer of a client."""
        raise NotImplementedError

    def decode(self, value: bytes, topic: str) -> Any:
        from confluent_kafka.serialization import SerializationError

        with _clear_refusals():
            try:
                return self._deserializer(value, _context(topic))
            except (SerializationError, *_MALFORMED) as error:
                raise ValueError(short(error)) from error

    def encode(self, payload: Any, topic: str) -> bytes:
        with _clear_refusals():
            written: bytes = self._serializer(payload, _context(topic))
            return written


class Avro(RegistryFormat):
    """Avro; values are dicts, or what ``from_dict`` makes of them and ``to_dict`` takes.

    ``schema`` is the text of the schema to write, and to read with if it is given; without it values are read
    with their own schema, and can only be written with the setting ``use.latest.version``.
    """

    def __init__(
        self,
        schema: str | None = None,
        *,
        from_dict: FromDict | None = None,
        to_dict: ToDict | None = None,
        registry: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(registry, settings)
        self._schema, self._from_dict, self._to_dict = schema, from_dict, to_dict

    def _make(self, client: Any) -> None:
        from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

        self._serializer = AvroSerializer(client, self._schema, self._to_dict, self._settings or None)
        self._deserializer = AvroDeserializer(client, self._schema, self._from_dict)


class JsonSchema(RegistryFormat):
    """JSON with a schema; values are dicts, or what ``from_dict`` makes of them and ``to_dict`` takes."""

    def __init__(
        self,
        schema: str,
        *,
        from_dict: FromDict | None = None,
        to_dict: ToDict | None = None,
        registry: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(registry, settings)
        self._schema, self._from_dict, self._to_dict = schema, from_dict, to_dict

    def _make(self, client: Any) -> None:
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

        self._serializer = JSONSerializer(self._schema, client, self._to_dict, self._settings or None)
        self._deserializer = JSONDeserializer(self._schema, self._from_dict, client)


class Protobuf(RegistryFormat):
    """Protobuf; values are messages of a generated class."""

    def __init__(
        self,
        message: type,
        *,
        registry: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(registry, settings)
        self._message = message

    def decode(self, value: bytes, topic: str) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return super().decode(value, topic)
        except DecodeError as error:
            raise ValueError(short(error)) from error

    def _make(self, client: Any) -> None:
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

        self._serializer = ProtobufSerializer(self._message, client, self._settings or None)
        self._deserializer = ProtobufDeserializer(self._message, None, client)


def _context(topic: str) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext(topic, MessageField.VALUE)


@contextmanager
def _clear_refusals() -> Iterator[None]:
    """Tell what the registry says, or that it says nothing, from what is wrong with a value."""
    from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError
    from httpx2 import HTTPError

    try:
        yield
    except SchemaRegistryError as error:
        if error.http_status_code == _NOT_FOUND:
            raise UnknownSchema(f"the Schema Registry: {error}") from error
        raise FormatUnavailable(f"the Schema Registry refused: {error}") from error
    except (HTTPError, OAuthTokenError, OSError) as error:
        raise FormatUnavailable(
            f"the Schema Registry does not answer: {short(error)}; nothing is lost: the worker's records are "
            "read again when it is started again"
        ) from error
