"""The HTTP server of a process: serves its metrics, and whether it is alive.

Invariant: it runs in separate threads and touches no loop. ``/health`` fails only for a loop that is stuck,
which a restart ends; not for a broker that is away. Served on loopback unless configured otherwise.
"""

import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from acktree.core.errors import NoMetrics
from acktree.core.reports.liveness import Liveness
from acktree.core.reports.metrics import ReportCollector
from acktree.core.reports.stats import Report

LOOPBACK = "127.0.0.1"
HEALTH = "/health"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Served(NamedTuple):
    """A running server."""

    server: WSGIServer
    url: str

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


def serve(collector: Collector, port: int, host: str = LOOPBACK, progress: Liveness | None = None) -> Served:
    """Serve a collector's metrics at ``/metrics``, and ``/health``; port 0 takes a free one.

    Raises:
        NoMetrics: the port cannot be bound.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise NoMetrics(f"cannot serve metrics on {host}:{port}: {error}; choose another port") from error
    metrics = server.get_app()
    assert metrics is not None
    server.set_app(with_health(metrics, progress))
    return Served(server, f"http://{host}:{server.server_port}/metrics")


def serve_reports(
    topology: str,
    read: Callable[[], Iterable[Report]],
    port: int,
    host: str = LOOPBACK,
    progress: Liveness | None = None,
) -> Served:
    """Serve the reports of a process and the health of its loop. Raises NoMetrics."""
    return serve(ReportCollector(topology, read, progress), port, host, progress)


def with_health(metrics: Application, progress: Liveness | None) -> Application:
    """Return an application that answers ``/health``, with 503 while the loop is stuck."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != HEALTH:
            return metrics(environ, start)
        alive = progress is None or not progress.is_stuck
        status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
        start(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
        about = {} if progress is None else progress.figures()
        return [json.dumps({"alive": alive, **about}).encode() + b"\n"]

    return answer
