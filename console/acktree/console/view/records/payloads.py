"""Formats the content of a record for people: JSON in lines, text or hexadecimal, and only its beginning.

Invariant: the record is shown as it is: JSON is broken into lines, never parsed and written again. Control
characters are kept; the code that shows a text makes them visible.
"""

import codecs
import json
import re
from dataclasses import dataclass

from confluent_kafka import Message as Record

from acktree.console.view.cluster import Cluster, OffsetRange, Place, UnreadableRecord
from acktree.console.view.wire_format import HEAD_BYTES, NO_SCHEMAS, Schemas, schema_id_of
from acktree.core.errors import NotAuthorized

SHOWN_BYTES = 2_048
"""How much of a key or value is shown."""
MAX_PAYLOADS = 200
"""How many tuples of a trace are shown with their payloads."""
MAX_DEPTH = 20
"""JSON that is nested deeper stays as it is: its lines would be mostly blanks."""
MAX_CHARACTERS = 4 * SHOWN_BYTES

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"{}\[\],:]+|[{}\[\],:]')


@dataclass(frozen=True, slots=True)
class Payload:
    """A key or a value: the beginning as `text`, whose `form` is `json`, `avro`, `text`, `hex` or `null`.

    `schema` names the schema of a registry that the value itself names.
    """

    form: str
    text: str
    size_bytes: int
    shown_bytes: int
    schema: str = ""


@dataclass(frozen=True, slots=True)
class RecordPayload:
    """Key and value of a record; if they are not shown, `missing` says in a sentence why."""

    key: Payload | None
    value: Payload | None
    missing: str | None


def make_payload(raw: bytes | str | None, schemas: Schemas = NO_SCHEMAS) -> Payload:
    r"""Return how a key or value is shown.

    >>> print(make_payload(b'{"n": 1.0}').text)
    {
      "n": 1.0
    }
    >>> make_payload(b"\xff\x01")
    Payload(form='hex', text='ff 01', size_bytes=2, shown_bytes=2, schema='')
    """
    if raw is None:
        return Payload("null", "", 0, 0)
    whole = raw.encode() if isinstance(raw, str) else raw
    head = whole[:SHOWN_BYTES]
    is_whole = len(head) == len(whole)
    text = _decoded(head, is_whole)
    if text is None and schema_id_of(whole) is not None:
        return _of_schema(whole, schemas)
    if text is None:
        return Payload("hex", head.hex(" "), len(whole), len(head))
    lines = _json_in_lines(text) if is_whole else None
    form, shown = ("text", text) if lines is None else ("json", lines)
    return Payload(form, shown, len(whole), len(head))


def _of_schema(whole: bytes, schemas: Schemas) -> Payload:
    r"""Return how a value of a schema registry's wire format is shown.

    >>> make_payload(b'\0\0\0\0\7{"n":1}').schema, make_payload(b"\0\0\0\0\7\2").text
    ('schema id 7', '00 00 00 00 07 02')
    """
    name, found = f"schema id {schema_id_of(whole)}", schemas.decode(whole)
    size_bytes, head = len(whole), whole[:SHOWN_BYTES]
    if found is not None:
        name = f"{found[0]}, {name}"
        if found[1] is not None:
            text = json.dumps(found[1], ensure_ascii=False, default=str)
            lines = _json_in_lines(text) or text
            shown = lines if len(lines) <= MAX_CHARACTERS else lines[: MAX_CHARACTERS - 2] + " …"
            return Payload("avro", shown, size_bytes, size_bytes, name)
    body = _decoded(whole[HEAD_BYTES:], True) if size_bytes <= SHOWN_BYTES else None
    written = None if body is None else _json_in_lines(body)
    if written is not None:
        return Payload("json", written, size_bytes, size_bytes, name)
    return Payload("hex", head.hex(" "), size_bytes, len(head), name)


def about(part: Payload) -> str:
    """Return the form and the size of a key or value.

    >>> about(Payload("text", "a", 1, 1)), about(Payload("hex", "ff …", 5000, 2048))
    ('text, 1 byte', 'hex, the first 2,048 of 5,000 bytes')
    """
    if part.form == "null":
        return "null"
    form = f"{part.form}, {part.schema}" if part.schema else part.form
    if part.shown_bytes < part.size_bytes:
        return f"{form}, the first {part.shown_bytes:,} of {part.size_bytes:,} bytes"
    return f"{form}, {part.size_bytes:,} byte" + ("s" if part.size_bytes != 1 else "")


def payload_of(record: Record, schemas: Schemas = NO_SCHEMAS) -> RecordPayload:
    """Return what a record holds."""
    key, value = make_payload(record.key(), schemas), make_payload(record.value(), schemas)
    return RecordPayload(key, value, None)


def missing(sentence: str) -> RecordPayload:
    """Return that a payload is not shown, and why."""
    return RecordPayload(None, None, sentence)


def read_payload(cluster: Cluster, place: Place, offset: int, log: OffsetRange) -> RecordPayload:
    """Return what the record at a position of a ``log`` holds, or why that is not shown.

    Raises:
        BrokerUnreachable, BrokerRefused: see their docstrings; a missing right is not an error here.
    """
    name = f"{place[0]}/{place[1]}/{offset}"
    if offset < log.start:
        return missing(f"{name} is gone: retention removed everything below {log.start}")
    if offset >= log.end:
        return missing(f"{name} is not written yet: the log ends before {log.end}")
    try:
        record = cluster.record_within(place, offset)
    except (NotAuthorized, UnreadableRecord) as error:
        return missing(f"the payload is not shown: {error}")
    if record is None:
        return missing(
            f"{name} holds no record: compaction has removed it, or it belongs to an "
            "aborted transaction, or is a transaction marker"
        )
    return payload_of(record, cluster.schemas)


def _decoded(head: bytes, is_whole: bool) -> str | None:
    """Return bytes as text, None if they are none; a character that the limit cuts is left out."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _json_in_lines(text: str) -> str | None:
    """Return a JSON object or array in lines, None if the text is none or is nested too deep to be read."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    parts, depth, before = [], 0, ""
    for token in _TOKEN.findall(text):
        if token in ("}", "]"):
            depth -= 1
            if before not in ("{", "["):
                parts.append("\n" + "  " * depth)
        elif before in ("{", "[", ","):
            parts.append("\n" + "  " * depth)
        parts.append(": " if token == ":" else token)
        depth += token in ("{", "[")
        if depth > MAX_DEPTH:
            return None
        before = token
    lines = "".join(parts)
    return lines if len(lines) <= MAX_CHARACTERS else None
