"""An OTLP receiver in the test's process: it decodes what a client sends, and answers as the test says."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from deadlines import ANSWER_S

OK = 200


class Received:
    """A span as it came, with its service and its attributes as a dict."""

    def __init__(self, service: str, span: Any) -> None:
        self.service, self.name = service, span.name
        self.trace_id, self.span_id = span.trace_id.hex(), span.span_id.hex()
        self.parent_id = span.parent_span_id.hex()
        self.start_ns, self.end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        self.is_error, self.message = span.status.code == 2, span.status.message
        self.attributes = {each.key: _value(each.value) for each in span.attributes}
        self.links = {
            (link.trace_id.hex(), link.span_id.hex(), _value(link.attributes[0].value)) for link in span.links
        }


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class OtlpReceiver:
    """Serves on a free port; ``answer`` says, by request, with which status."""

    def __init__(self, answer: Callable[[list[Received]], int] = lambda _spans: OK, port: int = 0) -> None:
        self.requests: list[list[Received]] = []
        """What was taken, by request."""
        self.refused = 0
        receiver = self

        class OtlpHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                spans = _spans(ExportTraceServiceRequest.FromString(body))
                status = answer(spans)
                if status == OK:
                    receiver.requests.append(spans)
                else:
                    receiver.refused += 1
                self.send_response(status)
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), OtlpHandler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def spans(self) -> list[Received]:
        return [span for request in self.requests for span in request]

    def trees(self) -> dict[str, list[Received]]:
        """Return the taken spans by trace id."""
        found: dict[str, list[Received]] = {}
        for span in self.spans:
            found.setdefault(span.trace_id, []).append(span)
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(ANSWER_S)


def _spans(request: ExportTraceServiceRequest) -> list[Received]:
    found = []
    for of_resource in request.resource_spans:
        about = {each.key: _value(each.value) for each in of_resource.resource.attributes}
        found += [
            Received(about["service.name"], span)
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]
    return found
