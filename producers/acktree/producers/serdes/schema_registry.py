"""Reads and writes Avro, Protobuf and JSON Schema with a Schema Registry: extra ``registry``.

Invariant: an error inside the registry's client never rejects a value: the registry is away or answers
nonsense, which stops the worker, or it refuses what one value asks for, which fails that tuple alone.
"""

import json
import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import fastavro

from acktree.core.errors import RefusedSetting, how_to_install
from acktree.core.kafka.settings import REGISTRY_PREFIX, Settings
from acktree.producers.errors import MissingExtra, RegistryUnavailable, UnknownSchema
from acktree.producers.serdes.serde import Deserialize, Serde, Serialize, Typed
from acktree.producers.tuples import Headers

REQUEST_TIMEOUT_S = 10
"""How long a request may take by default; the client's own default is no limit."""

_NUMBERS = frozenset(
    (
        "cache.capacity",
        "cache.latest.ttl.sec",
        "max.retries",
        "retries.max.wait.ms",
        "retries.wait.ms",
        "timeout",
    )
)
_REFUSED_SCHEMA = (409, 422)
_MALFORMED = ("DecodeError", "SerializationError")
"""Of protobuf and confluent-kafka, by name: the former may not be installed."""
_MALFORMED_KINDS = (EOFError, LookupError, OverflowError, struct.error)
"""What readers of Avro raise for bytes that a schema does not fit, beside ValueError."""
_NOT_FOUND = range(40400, 40500)
_OF_VALUES = ("get_schema", "get_schema_by_guid", "get_version")
"""What a reader asks for because a value, or its schema, names it."""
_UNANSWERED = (401, 408, 429)
"""Statuses below 500 that tell of the registry or of this user, whatever was asked for."""


class Registered(Serde):
    """Values in the wire format of the Schema Registry at the client setting ``schema.registry.url``."""

    def __init__(self, type_: Any = None, schema: str | None = None, conf: Mapping[str, Any] | None = None):
        """``conf`` holds further settings of confluent-kafka's serializer or deserializer."""
        self._typed = None if type_ is None else Typed(type_)
        self._schema, self._conf = schema, dict(conf or {})

    @abstractmethod
    def make_deserializer(self, client: Any, conf: dict[str, Any]) -> Callable[..., Any]:
        """Return confluent-kafka's deserializer."""

    @abstractmethod
    def make_serializer(self, client: Any, conf: dict[str, Any]) -> Callable[..., Any]:
        """Return confluent-kafka's serializer."""

    def deserializer(self, settings: Settings) -> Deserialize:
        """Return what reads values. Raises MissingExtra, RefusedSetting."""
        made, context = self._make(self.make_deserializer, registry_client(settings))
        typed = self._typed

        def deserialize(value: bytes, topic: str, headers: Headers) -> Any:
            found = _read(made, value, context(topic, headers))
            return found if typed is None else typed.from_python(found)

        return deserialize

    def serializer(self, settings: Settings) -> Serialize:
        """Return what writes values. Raises MissingExtra, RefusedSetting."""
        made, context = self._make(self.make_serializer, registry_client(settings, is_reader=False))
        typed = self._typed

        def serialize(payload: Any, topic: str) -> bytes:
            found = payload if typed is None else typed.to_python(payload)
            written = _call(made, found, context(topic, []))
            assert isinstance(written, bytes), written
            return written

        return serialize

    def _make(
        self, make: Callable[[Any, dict[str, Any]], Callable[..., Any]], client: "GuardedClient"
    ) -> tuple[Callable[..., Any], Callable[[str, Headers], Any]]:
        try:
            from confluent_kafka.schema_registry import topic_subject_name_strategy
            from confluent_kafka.serialization import MessageField, SerializationContext

            conf = {"subject.name.strategy": topic_subject_name_strategy, **self._conf}
            made = make(client, conf)
        except ImportError as error:
            raise _missing(error) from error
        except (ValueError, TypeError) as error:
            raise RefusedSetting(f"{self}: {error}") from error
        return made, lambda topic, headers: SerializationContext(topic, MessageField.VALUE, headers)


class Avro(Registered):
    """Avro by a schema of the registry: dicts, or instances of a pydantic model or a dataclass.

    To write, ``schema`` is needed, as JSON text, or ``conf={"use.latest.version": True,
    "auto.register.schemas": False}``. To read, it may be omitted: the writer's is used.
    """

    def make_deserializer(self, client: Any, conf: dict[str, Any]) -> Callable[..., Any]:
        """Return an AvroDeserializer."""
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        return _as_callable(AvroDeserializer(client, self._schema, conf=conf))

    def make_serializer(self, client: Any, conf: dict[str, Any]) -> Callable[..., Any]:
        """Return an AvroSerializer."""
        from confluent_kafka.schema_registry.avro import AvroSerializer

        return _as_callable(AvroSerializer(client, self._schema, conf=conf))


class JsonSchema(Registered):
    """JSON by a JSON Schema of the registry; to write without ``schema``, that of the type is used."""

    def make_deserializer(self, client: Any, conf: dict[str, Any]) -> Callable[..., Any]:
        """Return a JSONDeserializer."""
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        return _as_callable(JSONDeserializer(self._schema, schema_registry_client=client, conf=conf))

    def make_serializer(self, client: Any, conf: dict[str, Any]) -> Callable[..., Any]:
        """Return a JSONSerializer."""
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        schema = self._schema
        if schema is None and self._typed is not None:
            own = self._typed.adapter.json_schema(mode="serialization")
            schema = json.dumps({"title": self._typed.name, **own})
        return _as_callable(JSONSerializer(schema, client, conf=conf))


class Protobuf(Registered):
    """Protobuf messages of one generated class, whose schema the registry knows."""

    def __init__(self, message: type[Any], conf: Mapping[str, Any] | None = None):
        super().__init__(conf=conf)
        self._message = message

    def make_deserializer(self, client: Any, conf: dict[str, Any]) -> Callable[..., Any]:
        """Return a ProtobufDeserializer."""
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        own = {"use.deprecated.format": False, **conf}
        return _as_callable(ProtobufDeserializer(self._message, own, client))

    def make_serializer(self, client: Any, conf: dict[str, Any]) -> Callable[..., Any]:
        """Return a ProtobufSerializer."""
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        own = {"use.deprecated.format": False, **conf}
        return _as_callable(ProtobufSerializer(self._message, client, own))


def _as_callable(made: Any) -> Callable[..., Any]:
    """Return a serializer of a library without types as what it is."""

    def call(value: Any, context: Any) -> Any:
        return made(value, context)

    return call


class GuardedClient:
    """A registry's client whose every error is a RegistryUnavailable or an UnknownSchema.

    Only the refusal of a schema to write by, as incompatible or invalid, is raised as it is.
    """

    def __init__(self, client: Any, url: str, is_reader: bool) -> None:
        self._client, self._url, self._is_reader = client, url, is_reader
        self._usable: set[str] = set()
        """Schemas that were looked at."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return self._guarded(found) if callable(found) else found

    def _guarded(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = ask(*args, **kwargs)
                self._check_answer(ask.__name__, answer)
                return answer
            except UnknownSchema:
                raise
            except Exception as error:
                status, code = getattr(error, "http_status_code", None), getattr(error, "error_code", None)
                if (self._is_reader and _refuses_value(ask.__name__, status, code)) or (
                    status == 404 and code in _NOT_FOUND
                ):
                    raise UnknownSchema(
                        f"the schema registry at {self._url} does not return the schema: {error}"
                    ) from error
                if status in _REFUSED_SCHEMA:
                    raise
                raise RegistryUnavailable(
                    f"the schema registry at {self._url} does not answer: {_kind_of(error)}"
                ) from error

        return guarded

    def _check_answer(self, request: str, answer: Any) -> None:
        """Raise ValueError for an answer without what was asked for: a proxy's, say.

        Raises:
            UnknownSchema: the schema is one that nothing here can read.
        """
        if request in ("get_schema", "get_schema_by_guid"):
            if not isinstance(answer.schema_str, str):
                raise ValueError("the response contains no schema")
            if answer.schema_str not in self._usable:
                self._check_schema(answer)
                self._usable.add(answer.schema_str)
        if request == "register_schema_full_response" and not isinstance(answer.schema_id, int):
            raise ValueError("the response contains no schema id")

    def _check_schema(self, schema: Any) -> None:
        """Look at a schema before a value is read by it: what is wrong with it, no value must answer for."""
        text, kind = schema.schema_str, schema.schema_type or "AVRO"
        if kind == "PROTOBUF":
            return
        plain = text if text.isalpha() else json.loads(text)
        if kind == "AVRO" and not schema.references:
            try:
                fastavro.parse_schema(plain)
            except Exception as error:
                raise UnknownSchema(
                    f"the schema registry at {self._url} has a schema that is not Avro: {_kind_of(error)}"
                ) from error


def _refuses_value(request: str, status: Any, code: Any) -> bool:
    """Return whether the registry refuses what one value asks for, and answers other values.

    A proxy in its place has no code; but a registry may lack the path of GUIDs, and anybody can send one.

    >>> _refuses_value("get_schema", 404, 40403), _refuses_value("get_schema", 404, -1)
    (True, False)
    """
    if request not in _OF_VALUES or not isinstance(status, int):
        return False
    if request == "get_schema_by_guid" and status == 404:
        return True
    return 400 <= status < 500 and status not in _UNANSWERED and isinstance(code, int) and code > 0


def _kind_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def registry_client(settings: Settings, *, is_reader: bool = True) -> GuardedClient:
    """Return a client of the registry that the client settings ``schema.registry.*`` name.

    What a writer asks for comes from its settings: refusing it concerns every value.

    Raises:
        MissingExtra: the extra ``registry`` is not installed.
        RefusedSetting: there is no ``schema.registry.url``, or the client refuses a setting.
    """
    given = {
        key.removeprefix(REGISTRY_PREFIX): value
        for key, value in settings.items()
        if key.startswith(REGISTRY_PREFIX)
    }
    url = given.get("url", "")
    if not url:
        raise RefusedSetting(
            "a schema registry is needed: set schema.registry.url, such as http://registry:8081"
        )
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise _missing(error) from error
    try:
        conf: dict[str, Any] = {"timeout": REQUEST_TIMEOUT_S}
        conf |= {key: float(value) if key in _NUMBERS else value for key, value in given.items()}
        client = SchemaRegistryClient.new_client(conf)
    except (ValueError, TypeError, OSError) as error:
        text = str(error)
        for part in map(str.strip, url.split(",")):
            text = text.replace(part.rstrip("/"), _without_user(part.rstrip("/")))
        raise RefusedSetting(f"{REGISTRY_PREFIX}*: {text}") from None  # the error has the password of the URL
    return GuardedClient(client, _without_user(url), is_reader)


def _without_user(url: str) -> str:
    """Return a URL, or several, without the user and password that may be in it.

    >>> _without_user("https://me:secret@registry:8081,http://b")
    'https://registry:8081,http://b'
    """
    parts = (part.strip().partition("://") for part in url.split(","))
    return ",".join(f"{scheme}://{rest.rpartition('@')[2]}" for scheme, _, rest in parts)


def _read(made: Callable[..., Any], value: bytes, context: Any) -> Any:
    """Call a deserializer; what its libraries raise for bytes that fit no schema becomes a ValueError."""
    try:
        return _call(made, value, context)
    except Exception as error:
        if type(error).__name__ in _MALFORMED or isinstance(error, _MALFORMED_KINDS):
            raise ValueError(_kind_of(error)) from error
        raise


def _call(made: Callable[..., Any], value: Any, context: Any) -> Any:
    """Call a serializer; an error of the registry's comes out as itself, whatever wraps it."""
    try:
        return made(value, context)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, RegistryUnavailable | UnknownSchema):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        raise


def _missing(error: ImportError) -> MissingExtra:
    return MissingExtra(f"a schema registry needs more packages ({error}): {how_to_install('registry')}")
