"""Sends spans by OTLP over HTTP; the only file that imports OpenTelemetry. Needs the extra ``otel``.

Invariant: ``send`` returns SENT only after the receiver has answered that it took the request. The variables
``OTEL_EXPORTER_OTLP_…`` of OpenTelemetry apply: headers, certificates, compression, timeout.
"""

import logging
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from acktree.console.traces.spans import Span

PATH = "/v1/traces"
UNUSABLE = (400, 413, 422)
"""Answers that say that the request itself is bad: sending it again changes nothing."""
MAX_REQUEST_BYTES = 16_000_000
"""A collector takes requests of 20 MiB, and OpenTelemetry sends none above 64 MiB, without saying why."""
MAX_TIME_MS = 2**63 // 1_000_000

log = logging.getLogger("acktree.traces")


class Sent(Enum):
    """The outcome of a request."""

    SENT = "sent"
    REFUSED = "refused"
    """The receiver will never take it."""
    FAILED = "failed"
    """It may take it later."""


class OtlpSender:
    """Sends spans to one receiver."""

    def __init__(self, topology: str, url: str | None, timeout_s: float | None = None) -> None:
        """``url`` without a path gets that of OTLP; None: as OpenTelemetry's variables say."""
        self.rejected_spans = 0
        """Spans that a receiver did not take though it took their request; its reasons are in the log."""
        self._topology, self._status = topology, 0
        self._resources: dict[str, Resource] = {}
        session = requests.Session()
        session.hooks["response"].append(self._on_response)
        self._exporter = OTLPSpanExporter(
            endpoint=None if url is None else with_path(url), timeout=timeout_s, session=session
        )

    def send(self, spans: Iterable[Span]) -> Sent:
        """Send spans in one request, and wait for its answer."""
        self._status = 0
        readable = [self._readable(span) for span in spans]
        if not _is_sendable(readable):
            return Sent.REFUSED
        try:
            if self._exporter.export(readable) is SpanExportResult.SUCCESS:
                return Sent.SENT
        except requests.RequestException as error:  # of releases of OpenTelemetry that retry by its type
            log.warning(
                "no answer from the receiver: %s", type(error).__name__, extra={"action": "export_failed"}
            )
        return Sent.REFUSED if self._status in UNUSABLE else Sent.FAILED

    def _on_response(self, response: Any, *_: Any, **__: Any) -> None:
        self._status = response.status_code
        if not response.ok or not response.content:
            return
        try:
            partial = ExportTraceServiceResponse.FromString(response.content).partial_success
        except Exception:  # not protobuf: some receivers answer in another format
            return
        if partial.rejected_spans:
            self.rejected_spans += partial.rejected_spans
            text, action = "the receiver rejected %d spans: %s", {"action": "spans_rejected"}
            log.warning(text, partial.rejected_spans, partial.error_message, extra=action)

    def _resource(self, service: str) -> Resource:
        if service not in self._resources:
            about = {"service.name": service, "service.namespace": self._topology}
            self._resources[service] = Resource.create(about)
        return self._resources[service]

    def _readable(self, span: Span) -> ReadableSpan:
        def context(trace_id: str, span_id: str, is_remote: bool) -> SpanContext:
            return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            name=span.name,
            context=context(span.trace_id, span.span_id, False),
            parent=context(span.trace_id, span.parent_id, True) if span.parent_id else None,
            resource=self._resource(span.service),
            attributes=dict(span.attributes),
            links=[
                Link(context(link.trace_id, link.span_id, True), {"acktree.link": link.why})
                for link in span.links
            ],
            kind=SpanKind.PRODUCER if span.is_emission else SpanKind.CONSUMER,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=_nanoseconds(span.start_ms),
            end_time=_nanoseconds(span.end_ms),
            instrumentation_scope=InstrumentationScope("acktree"),
        )

    def close(self) -> None:
        """Close the connections."""
        self._exporter.shutdown()


def _is_sendable(spans: Sequence[ReadableSpan]) -> bool:
    """Return whether spans make a request that can be sent; OpenTelemetry does not say that they do not."""
    try:
        return int(encode_spans(spans).ByteSize()) <= MAX_REQUEST_BYTES
    except Exception:
        log.exception("spans cannot be encoded", extra={"action": "tree_broken"})
        return False


def _nanoseconds(time_ms: int) -> int:
    """Return a time as OTLP has it; a producer may give a record any."""
    return 1_000_000 * min(max(time_ms, 0), MAX_TIME_MS)


def with_path(url: str) -> str:
    """Return the URL of a receiver with OTLP's path, if it has none.

    >>> with_path("http://collector:4318"), with_path("http://collector:4318/a/v1/traces")
    ('http://collector:4318/v1/traces', 'http://collector:4318/a/v1/traces')
    """
    return url.rstrip("/") + PATH if urlsplit(url).path in ("", "/") else url
