"""Decodes values in the wire format of a Schema Registry: a zero byte, the schema's id in four, the data.

Invariant: a page waits once for a registry that does not answer, then shows bytes for RETRY_AFTER_S. Avro is
decoded only by a schema in which every item takes at least a byte and no type holds itself: by others a short
record may mean endless items, or nesting that ends the process.
"""

import io
import json
import logging
import threading
from typing import Any

import fastavro

from acktree.core import world
from acktree.core.kafka.settings import REGISTRY_PREFIX, Settings
from acktree.producers.errors import UnknownSchema
from acktree.producers.serdes.schema_registry import registry_client
from acktree.wire.errors import AcktreeError

HEAD_BYTES = 5
MAX_AVRO_BYTES = 65_536
"""A longer value is not decoded."""
RETRY_AFTER_S = 60.0
MAX_SCHEMAS = 1_000
MAX_UNKNOWN = 20
"""After this many ids that the registry does not know it is not asked for RETRY_AFTER_S: they are not ids."""
_PATIENCE = {f"{REGISTRY_PREFIX}timeout": "3", f"{REGISTRY_PREFIX}max.retries": "0"}

log = logging.getLogger("acktree.ui")


def schema_id_of(raw: bytes) -> int | None:
    r"""Return the schema id at the beginning of a value, None if it has not the wire format.

    >>> schema_id_of(b"\0\0\0\0\x07..."), schema_id_of(b"text")
    (7, None)
    """
    if len(raw) <= HEAD_BYTES or raw[0] != 0:
        return None
    return int.from_bytes(raw[1:HEAD_BYTES], "big") or None


class Schemas:
    """The schemas of a registry, by id; none if the settings name no registry."""

    def __init__(self, settings: Settings) -> None:
        self._settings = {**_PATIENCE, **settings} if f"{REGISTRY_PREFIX}url" in settings else None
        self._client: Any = None
        self._known: dict[int, tuple[str, Any]] = {}
        self._unknown: dict[int, float] = {}
        """Until when an id is not asked for again."""
        self._lock = threading.Lock()
        self._ask_again_s = 0.0

    def decode(self, raw: bytes) -> tuple[str, Any] | None:
        r"""Return what the schema is, and what a value of the wire format means by it, None if not known.

        >>> Schemas({}).decode(b"\0\0\0\0\7\2") is None
        True
        """
        number = schema_id_of(raw)
        if number is None or self._settings is None:
            return None
        kind, parsed = self._schema(number)
        if not kind or parsed is None or len(raw) > MAX_AVRO_BYTES:
            return (kind, None) if kind else None
        body = io.BytesIO(raw[HEAD_BYTES:])
        try:
            return kind, fastavro.schemaless_reader(body, parsed, None)
        except Exception:
            return kind, None

    def _schema(self, number: int) -> tuple[str, Any]:
        """Return a schema's type and, for Avro that may be decoded, the schema; "" if it cannot be asked."""
        with self._lock:
            if number in self._known:
                return self._known[number]
            now_s = world.monotonic_s()
            self._unknown = {each: until_s for each, until_s in self._unknown.items() if now_s < until_s}
            if now_s < self._ask_again_s or number in self._unknown or len(self._unknown) >= MAX_UNKNOWN:
                return "", None
            try:
                found = self._ask(number)
            except UnknownSchema:
                self._unknown[number] = now_s + RETRY_AFTER_S
                return "", None
            except AcktreeError as error:
                self._ask_again_s = world.monotonic_s() + RETRY_AFTER_S
                log.warning("not decoding values: %s", error, extra={"action": "schema_registry"})
                return "", None
            if len(self._known) < MAX_SCHEMAS:
                self._known[number] = found
            return found

    def _ask(self, number: int) -> tuple[str, Any]:
        """Raises RegistryUnavailable, UnknownSchema, MissingExtra, RefusedSetting."""
        if self._client is None:
            self._client = registry_client(self._settings or {})
        schema = self._client.get_schema(number)
        kind = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON"}.get(schema.schema_type or "AVRO", "")
        if kind != "Avro" or schema.references:
            return kind, None
        try:
            plain = json.loads(schema.schema_str)
            return kind, fastavro.parse_schema(plain) if is_bounded(plain) else None
        except Exception as error:
            log.warning("schema %d cannot be used: %s", number, error, extra={"action": "schema_registry"})
            return kind, None


NO_SCHEMAS = Schemas({})


def is_bounded(schema: Any) -> bool:
    """Return whether a value's size limits what it decodes to: no item without bytes, no type within itself.

    >>> is_bounded({"type": "array", "items": "long"}), is_bounded({"type": "array", "items": "null"})
    (True, False)
    """
    return _least_bytes(schema, {}) is not None


def _least_bytes(schema: Any, named: dict[str, int | None]) -> int | None:
    """Return how many bytes a value takes at least, None if it may be endless; ``named``: types so far."""
    if isinstance(schema, str):
        return named.get(schema, 0 if schema == "null" else 1)
    if isinstance(schema, list):
        branches = [_least_bytes(branch, named) for branch in schema]
        return None if None in branches else 1
    kind = schema.get("type")
    if kind in ("array", "map"):
        least = _least_bytes(schema["items" if kind == "array" else "values"], named)
        return 1 if least or (least == 0 and kind == "map") else None
    name, space = schema.get("name", ""), schema.get("namespace", "")
    names = {name, name.rpartition(".")[2], f"{space}.{name}"}
    if kind in ("record", "error"):
        named.update(dict.fromkeys(names))  # within itself it is endless
        fields = [_least_bytes(each["type"], named) for each in schema["fields"]]
        least = None if None in fields else sum(filter(None, fields))
        named.update(dict.fromkeys(names, least))
        return least
    if kind in ("fixed", "enum"):
        least = int(schema["size"]) if kind == "fixed" else 1
        named.update(dict.fromkeys(names, least))
        return least
    return _least_bytes(kind, named)
