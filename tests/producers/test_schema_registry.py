"""Values with schemas of a Schema Registry: one answers in this process over HTTP, as the real one does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from acktree.producers import Avro, BadHandler, BasicBolt, FormatUnavailable, JsonSchema, Protobuf, bolt
from acktree.producers.testing import BoltDouble

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "cents", "type": "int"}]})
JSON_ORDER = json.dumps(
    {"title": "Order", "type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
)


class SmallRegistry:
    """As much of a Schema Registry as serializers ask for; ``status`` is what it answers instead, if set."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.status = 0
        registry = self

        class RegistryHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0].split("/")
                known = found[1:3] == ["schemas", "ids"] and int(found[3]) <= len(registry.schemas)
                if known:
                    self.answer(200, registry.schemas[int(found[3]) - 1])
                else:
                    self.answer(404, {"error_code": 40403, "message": "Schema not found"})

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                schema = {"schema": asked["schema"], "schemaType": asked.get("schemaType", "AVRO")}
                if schema not in registry.schemas:
                    registry.schemas.append(schema)
                number = registry.schemas.index(schema) + 1
                subject = self.path.partition("?")[0].split("/")[2]
                self.answer(200, {"id": number, "version": 1, "subject": subject, **schema})

            def answer(self, status: int, body: dict[str, Any]) -> None:
                if registry.status:
                    status, body = registry.status, {"error_code": registry.status, "message": "not now"}
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), RegistryHandler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallRegistry]:
    made = SmallRegistry()
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", made.url)
    yield made
    made.server.shutdown()
    made.server.server_close()


def copies(one: Any) -> type[BasicBolt]:
    """Return a bolt that reads and writes with a format."""

    class CopyPayload(BasicBolt):
        reads_as, emits_as = one, one

        def execute(self, tup, emit):
            emit(tup.payload)

    return CopyPayload


def order_class() -> Any:
    """Return the class that protoc would make of ``message Order { int32 cents = 1; }``."""
    file = descriptor_pb2.FileDescriptorProto(name="acktree_order.proto", package="acktree", syntax="proto3")
    field = file.message_type.add(name="Order").field.add(name="cents", number=1)
    field.type, field.label = field.TYPE_INT32, field.LABEL_OPTIONAL
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("acktree.Order"))


ProtobufOrder = order_class()


@pytest.mark.parametrize(
    ("made", "payload"),
    [
        (lambda: Avro(ORDER), {"cents": 7}),
        (lambda: JsonSchema(JSON_ORDER), {"cents": 7}),
        (lambda: Protobuf(ProtobufOrder), ProtobufOrder(cents=7)),
    ],
)
def test_what_one_bolt_writes_another_reads_and_a_malformed_value_is_never_tried_again(
    registry: SmallRegistry, made: Any, payload: Any
) -> None:
    class WriteWhole(BasicBolt):
        emits_as = made()

        def execute(self, tup, emit):
            emit(payload)

    writer = BoltDouble(WriteWhole())
    writer.give(b"go")
    value = writer.emitted[0].value
    assert value is not None
    assert value[:5] == b"\0\0\0\0\1"
    reader = BoltDouble(copies(made())())
    reader.give(value, b"plain", value[:5] + b"\xff\xff", value, None)
    assert [each.value for each in reader.emitted] == [value, value, None]
    assert (reader.acked, reader.rejected) == ({0, 3, 4}, {1, 2})


def test_an_avro_format_makes_objects_of_the_users_own(registry: SmallRegistry) -> None:
    cents = Avro(ORDER, from_dict=lambda found, _: found["cents"], to_dict=lambda given, _: {"cents": given})

    @bolt(reads_as=cents, emits_as=cents)
    def doubled(amount: Any) -> int:
        return int(amount) * 2

    double = BoltDouble(doubled)
    cents.prepare()
    double.give(cents.encode(4, "in"))
    assert double.emitted[0].value == cents.encode(8, "out")


def test_a_payload_that_does_not_fit_the_schema_fails_its_tuple_alone(registry: SmallRegistry) -> None:
    class WriteMisfit(BasicBolt):
        emits_as = Avro(ORDER)

        def execute(self, tup, emit):
            emit({"cents": tup.value.decode()} if tup.value == b"x" else {"cents": 1})

    double = BoltDouble(WriteMisfit())
    double.give(b"1", b"x", b"1")
    assert (double.acked, set(double.failed), double.rejected) == ({0, 2}, {1}, set())
    assert double.failed[1].startswith("NotSerializable: a dict cannot be written to 'out'")


def test_a_schema_that_the_registry_does_not_know_is_tried_again(registry: SmallRegistry) -> None:
    double = BoltDouble(copies(Avro(ORDER))())
    double.give(b"\0\0\0\0\x09\x0e")
    assert "UnknownSchema: the Schema Registry: Schema not found" in double.failed[0]
    assert double.rejected == set()


@pytest.mark.parametrize("status", [401, 422, 500])
def test_a_registry_that_refuses_stops_the_worker_and_fails_nothing(
    registry: SmallRegistry, status: int
) -> None:
    registry.status = status
    double = BoltDouble(copies(Avro(ORDER, registry={"url": registry.url, "max.retries": 0}))())
    with pytest.raises(FormatUnavailable, match="the Schema Registry refused: not now"):
        double.give(b"\0\0\0\0\1\x0e", b"\0\0\0\0\1\x0e")
    assert (double.acked, double.failed) == (set(), {})


def test_a_registry_that_is_away_stops_the_worker_and_fails_nothing() -> None:
    gone = Avro(ORDER, registry={"url": "http://127.0.0.1:1", "max.retries": 0})
    double = BoltDouble(copies(gone)())
    with pytest.raises(FormatUnavailable, match="does not answer"):
        double.give(b"\0\0\0\0\1\x0e")
    assert (double.acked, double.failed) == (set(), {})


def test_no_address_and_wrong_settings_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCHEMA_REGISTRY_URL", raising=False)
    with pytest.raises(BadHandler, match="Avro needs a Schema Registry: set SCHEMA_REGISTRY_URL"):
        BoltDouble(copies(Avro(ORDER))())
    for wrong in (Avro("{", registry={"url": "http://h"}), Avro(ORDER, registry={"url": "http://h", "x": 1})):
        with pytest.raises(BadHandler, match="Avro: "):
            BoltDouble(copies(wrong)())
