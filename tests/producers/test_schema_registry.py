"""Values of a Schema Registry: a server in this process that speaks its protocol, also when it is away."""

import json
import socket
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from acktree.console.view.records.payloads import about, make_payload
from acktree.console.view.wire_format import MAX_UNKNOWN, Schemas
from acktree.core.errors import RefusedSetting
from acktree.producers import (
    AsyncBolt,
    Avro,
    BasicBolt,
    BatchBolt,
    JsonSchema,
    Protobuf,
    RegistryUnavailable,
)
from acktree.producers.testing import BoltDouble

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Count",
        "fields": [{"name": "word", "type": "string"}, {"name": "count", "type": "long"}],
    }
)
JSON_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass
class RegisteredCount:
    word: str
    count: int


class Registry:
    """A server with the few requests of the protocol that serializers need; ``fault`` is sent to all.

    ``refused`` has the answers to lookups of some ids and GUIDs.
    """

    def __init__(self) -> None:
        self.schemas: list[dict[str, str]] = []
        self.fault: tuple[int, bytes] | None = None
        self.refused: dict[int | str, tuple[int, bytes]] = {}
        self.requests = 0
        self._port = socket.socket()
        registry = self

        class RegistryHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0].removeprefix("/schemas/ids/")
                known = found.isdigit() and 0 < int(found) <= len(registry.schemas)
                name = found.rpartition("/")[2]
                refused = registry.refused.get(int(name) if name.isdigit() else name)
                if refused is not None:
                    self.answer_raw(*refused)
                elif known:
                    self.answer(200, registry.schemas[int(found) - 1])
                else:
                    self.answer(404, {"error_code": 40403, "message": "Schema not found"})

            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                schema = {"schemaType": "AVRO", **sent}
                if schema not in registry.schemas:
                    registry.schemas.append(schema)
                number = registry.schemas.index(schema) + 1
                self.answer(200, {"id": number, "version": 1, "subject": "s", **schema})

            def answer(self, status: int, body: object) -> None:
                registry.requests += 1
                self.answer_raw(*(registry.fault or (status, json.dumps(body).encode())))

            def answer_raw(self, status: int, raw: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", JSON_TYPE)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), RegistryHandler)
        self.settings = {
            "schema.registry.url": f"http://127.0.0.1:{self._server.server_port}",
            "schema.registry.max.retries": "0",
        }
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Stop, and keep the port: else the registry of another test may get it."""
        self._server.shutdown()
        self._server.server_close()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(self._server.server_address)

    def release(self) -> None:
        if self._port.getsockname()[1] == 0:
            self.close()
        self._port.close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.release()


class Write(BasicBolt):
    emits_as = Avro(RegisteredCount, schema=SCHEMA)

    def execute(self, tup, emit):
        emit(RegisteredCount(tup.value.decode(), 1))


class Read(BasicBolt):
    reads_as, emits_as = Avro(RegisteredCount), str

    def execute(self, tup, emit):
        emit(f"{tup.payload.word} {tup.payload.count}")


class ReadBatch(BatchBolt):
    reads_as, emits_as = Avro(), str

    def execute(self, tuples, collector):
        collector.emit_many([f"{each['word']} {each['count']}" for each in tuples.payloads], tuples)


class ReadAsync(AsyncBolt):
    reads_as, emits_as = Avro(RegisteredCount), str

    async def execute(self, tup, emit):
        emit(f"{tup.payload.word} {tup.payload.count}")


def written(registry: Registry, *words: bytes, bolt: type[BasicBolt] = Write) -> list[bytes | None]:
    double = BoltDouble(bolt(), settings=registry.settings)
    double.give(*words)
    assert double.failed == {}
    return [each.value for each in double.emitted]


READERS = pytest.mark.parametrize("kind", [Read, ReadBatch, ReadAsync])


@READERS
def test_avro_is_read_by_the_schema_it_was_written_with_and_damage_is_rejected(kind, registry: Registry):
    first, second = written(registry, b"a", b"b")
    assert first is not None
    assert first[:5] == b"\0\0\0\0\x01"
    double = BoltDouble(kind(), settings=registry.settings)
    double.give(first, first[:-3], b'{"word": "a"}', b"", second)
    assert [(each.value, each.anchors) for each in double.emitted] == [(b"a 1", (0,)), (b"b 1", (4,))]
    assert double.rejected == {1, 2, 3}
    assert double.acked == {0, 4}


@READERS
@pytest.mark.parametrize(
    "fault",
    [
        (503, b"{}"),
        (500, b""),
        (401, b"{}"),
        (401, b'{"error_code": 40101, "message": "no"}'),
        (408, b'{"error_code": 408, "message": "late"}'),
        (429, b'{"error_code": 42901, "message": "busy"}'),
        (404, b"<html>"),
        (200, b"<html>"),
        (200, b"{}"),
        (200, b'{"schema": "<html>"}'),
        (200, b'{"schema": "{\\"type\\": "}'),
        (200, b'{"schema": "{", "schemaType": "JSON"}'),
    ],
)
def test_a_registry_that_does_not_answer_stops_the_worker_and_fails_no_tuple(fault, kind, registry: Registry):
    (value,) = written(registry, b"a")
    registry.fault = fault
    double = BoltDouble(kind(), settings=registry.settings)
    with pytest.raises(RegistryUnavailable):
        double.give(value)
    assert (double.failed, double.acked, double.emitted) == ({}, set(), [])


@READERS
def test_a_registry_that_is_away_stops_the_worker_and_fails_no_tuple(kind, registry: Registry):
    (value,) = written(registry, b"a")
    registry.close()
    double = BoltDouble(kind(), settings=registry.settings)
    with pytest.raises(RegistryUnavailable):
        double.give(value)
    assert (double.failed, double.acked, double.emitted) == ({}, set(), [])


def test_a_tuple_whose_schema_the_registry_lacks_fails_and_is_not_rejected(registry: Registry):
    (value,) = written(registry, b"a")
    double = BoltDouble(Read(), settings=registry.settings)
    double.give(b"\0\0\0\0\x63" + value[5:], value)
    assert set(double.failed) == {0}
    assert double.rejected == set()
    assert double.failed[0].startswith("UnknownSchema: ")
    assert double.acked == {1}


REFUSALS = {
    "an unknown id": (404, 40403),
    "an id above 2^31 - 1, which is no id": (404, 404),
    "a subject that this user may not read": (403, 40301),
    "an id that cannot be processed": (422, 42201),
    "an id that is malformed": (400, 400),
}


@READERS
@pytest.mark.parametrize(("status", "code"), REFUSALS.values(), ids=REFUSALS)
def test_a_lookup_that_the_registry_refuses_fails_that_tuple_only(
    status: int, code: int, kind, registry: Registry
):
    (value,) = written(registry, b"a")
    registry.refused = {2**32 - 1: (status, json.dumps({"error_code": code, "message": "no"}).encode())}
    double = BoltDouble(kind(), settings=registry.settings)
    double.give(b"\0\xff\xff\xff\xff" + value[5:], value)
    assert set(double.failed) == {0}
    assert double.failed[0].startswith("UnknownSchema: ")
    assert (double.acked, double.rejected) == ({1}, set())


@pytest.mark.parametrize("body", [b'{"error_code": 404, "message": "HTTP 404 Not Found"}', b"Not Found"])
def test_a_schema_guid_that_the_registry_cannot_look_up_fails_that_tuple_only(
    body: bytes, registry: Registry
):
    """A registry that is older than GUIDs does not even know the path."""
    (value,) = written(registry, b"a")
    assert value is not None
    registry.refused = {"00010203-0405-0607-0809-0a0b0c0d0e0f": (404, body)}
    double = BoltDouble(Read(), settings=registry.settings)
    double.give(value[5:] + b"." * 6, headers=[("__value_schema_id", b"\x01" + bytes(range(16)))])
    double.give(value)
    assert set(double.failed) == {0}
    assert double.failed[0].startswith("UnknownSchema: ")
    assert (double.acked, double.rejected) == ({1}, set())


@pytest.mark.parametrize("status", [403, 404])
def test_a_schema_that_a_setting_names_stops_the_worker_if_the_registry_refuses_it(
    status: int, registry: Registry
):
    """Every tuple would fail by it: this is a mistake of whoever set it."""
    registry.refused = {7: (status, json.dumps({"error_code": status, "message": "no"}).encode())}
    serde = Avro(conf={"use.schema.id": 7, "auto.register.schemas": False})
    double = BoltDouble(type("B", (Write,), {"emits_as": serde})(), settings=registry.settings)
    with pytest.raises(RegistryUnavailable):
        double.give(b"a")
    assert (double.failed, double.acked) == ({}, set())


@pytest.mark.parametrize("base", [BasicBolt, AsyncBolt])
def test_a_registry_that_is_away_stops_a_writer_even_if_its_bolt_swallows_the_error(base, registry: Registry):
    class CarelessBolt(base):
        emits_as = Avro(RegisteredCount, schema=SCHEMA)

        if base is BasicBolt:

            def execute(self, tup, emit):
                swallow(emit)

        else:

            async def execute(self, tup, emit):
                swallow(emit)

    def swallow(emit):
        try:
            emit(RegisteredCount("a", 1))
        except Exception:
            pass

    registry.fault = (503, b"{}")
    double = BoltDouble(CarelessBolt(), settings=registry.settings)
    with pytest.raises(RegistryUnavailable):
        double.give(b"a")
    assert double.acked == set()


def test_a_schema_that_the_registry_refuses_fails_the_tuple(registry: Registry):
    registry.fault = (409, b'{"error_code": 409, "message": "incompatible"}')
    double = BoltDouble(Write(), settings=registry.settings)
    double.give(b"a")
    assert "incompatible" in double.failed[0]
    assert double.rejected == set()


def test_each_schema_is_requested_once(registry: Registry):
    values = written(registry, *[b"a"] * 20)
    assert registry.requests == 1
    double = BoltDouble(Read(), settings=registry.settings)
    double.give(*values)
    assert registry.requests == 2


def test_a_json_schema_comes_from_the_type(registry: Registry):
    class WriteJson(Write):
        emits_as = JsonSchema(RegisteredCount)

    class ReadJson(Read):
        reads_as = JsonSchema(RegisteredCount)

    (value,) = written(registry, b"a", bolt=WriteJson)
    double = BoltDouble(ReadJson(), settings=registry.settings)
    double.give(value, value[:-1] + b"]")
    assert [each.value for each in double.emitted] == [b"a 1"]
    assert double.rejected == {1}
    shown = make_payload(value)
    assert (shown.form, json.loads(shown.text), shown.schema) == (
        "json",
        {"word": "a", "count": 1},
        "schema id 1",
    )


def test_protobuf_messages_are_written_and_read(registry: Registry):
    file = descriptor_pb2.FileDescriptorProto(name="word.proto", package="t", syntax="proto3")
    word = file.message_type.add(name="Word").field.add(name="value", number=1)
    word.type, word.label = word.TYPE_STRING, word.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Word"))

    class WriteMessage(Write):
        emits_as = Protobuf(message)

        def execute(self, tup, emit):
            emit(message(value=tup.value.decode()))

    class ReadMessage(Read):
        reads_as = Protobuf(message)

        def execute(self, tup, emit):
            emit(tup.payload.value)

    (value,) = written(registry, b"a", bolt=WriteMessage)
    double = BoltDouble(ReadMessage(), settings=registry.settings)
    double.give(value, value[:-1])
    assert [each.value for each in double.emitted] == [b"a"]
    assert double.rejected == {1}


@READERS
@pytest.mark.parametrize("schema", ['"rekord"', "{}", '{"type": "rekord"}', "[1]"])
def test_an_invalid_schema_rejects_no_value(schema, kind, registry: Registry):
    (value,) = written(registry, b"a")
    registry.fault = (200, json.dumps({"schema": schema}).encode())
    double = BoltDouble(kind(), settings=registry.settings)
    double.give(value)
    assert (double.rejected, set(double.failed)) == (set(), {0})
    assert double.failed[0].startswith("UnknownSchema: ")


def test_a_secret_in_the_url_never_appears_in_an_error(registry: Registry):
    url = registry.settings["schema.registry.url"].replace("http://", "htp://me:canary@")
    with pytest.raises(RefusedSetting) as refused:
        BoltDouble(Read(), settings={"schema.registry.url": url})
    assert "canary" not in str(refused.value)
    assert "htp://127.0.0.1" in str(refused.value)
    registry.fault = (500, b"")
    address = url.replace("htp://", "http://")
    double = BoltDouble(Read(), settings={**registry.settings, "schema.registry.url": address})
    with pytest.raises(RegistryUnavailable) as away:
        double.give(b"\0\0\0\0\1\2")
    assert "canary" not in "".join(traceback.format_exception(away.value))


def test_settings_that_name_no_registry_are_refused_at_the_start(registry: Registry):
    with pytest.raises(RefusedSetting, match=r"set schema\.registry\.url"):
        BoltDouble(Read())
    with pytest.raises(RefusedSetting, match=r"no\.such"):
        BoltDouble(Read(), settings={**registry.settings, "schema.registry.no.such": "1"})
    with pytest.raises(RefusedSetting, match="Avro"):
        BoltDouble(type("B", (Read,), {"reads_as": Avro(conf={"no.such": 1})})(), settings=registry.settings)


def test_a_page_decodes_avro_and_waits_once_for_a_registry_that_is_away(registry: Registry):
    (value,) = written(registry, b"a")
    shown = make_payload(value, Schemas(registry.settings))
    assert json.loads(shown.text) == {"word": "a", "count": 1}
    assert about(shown) == "avro, Avro, schema id 1, 8 bytes"
    damaged = make_payload(value[:-3], Schemas(registry.settings))
    assert about(damaged) == "hex, Avro, schema id 1, 5 bytes" or damaged.form == "hex"
    assert about(make_payload(value)) == "hex, schema id 1, 8 bytes"
    registry.fault = (503, b"{}")
    away, before = Schemas(registry.settings), registry.requests
    for _ in range(3):
        assert about(make_payload(value, away)) == "hex, schema id 1, 8 bytes"
    assert registry.requests == before + 1


def test_a_value_with_an_unknown_schema_does_not_stop_a_page_from_decoding_others(registry: Registry):
    (value,) = written(registry, b"a")
    schemas = Schemas(registry.settings)
    foreign = [make_payload(b"\0\0\0\1" + bytes([number]) + b"\2", schemas) for number in range(3)]
    before = registry.requests
    assert {each.form for each in foreign} == {"hex"}
    assert make_payload(value, schemas).form == "avro"
    for number in range(3):
        make_payload(b"\0\0\0\1" + bytes([number]) + b"\2", schemas)
    assert registry.requests == before + 1, "what is not known is not asked for again at once"
    for number in range(3, 2 * MAX_UNKNOWN):
        make_payload(b"\0\0\0\1" + bytes([number]) + b"\2", schemas)
    assert registry.requests == before + 1 + MAX_UNKNOWN - 3


def test_a_record_cannot_make_a_page_endless(registry: Registry):
    endless = {"type": "array", "items": "null"}
    itself = {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}
    schemas = Schemas(registry.settings)
    for schema, body in ((endless, b"\xfe\xff\xff\xff\x0f" * 2), (itself, b"\x02" * 60_000)):
        registry.schemas.append({"schemaType": "AVRO", "schema": json.dumps(schema)})
        shown = make_payload(b"\0" + len(registry.schemas).to_bytes(4, "big") + body, schemas)
        assert (shown.form, shown.schema.partition(",")[0]) == ("hex", "Avro")


def test_confluents_client_names_its_errors_as_acktree_expects():
    error = SchemaRegistryError(404, 40403, "no")
    assert (error.http_status_code, error.error_code) == (404, 40403)
