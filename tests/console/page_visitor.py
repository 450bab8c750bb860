"""Visits a page: over threads on a real broker; in the simulation, one request after the other."""

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from acktree.console.page.app import StatusPage
from acktree.console.page.serving import frame
from acktree.console.page.serving.frame import PageSettings
from acktree.core import world

URL = "http://localhost"


class SimulatedVisitor:
    """The part of starlette's TestClient that tests of the page use, without its threads."""

    def __init__(self, settings: tuple[PageSettings, ...]) -> None:
        app = StatusPage(*settings).make_app()
        self._loop = world.event_loop()
        self._client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url=URL, follow_redirects=True
        )
        self.cookies = self._client.cookies
        self._lifespan = app.router.lifespan_context(app)
        self._run(self._lifespan.__aenter__())

    def _run(self, call: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(call)

    def get(self, path: str, **more: Any) -> httpx2.Response:
        return self._run(self._client.get(path, **more))

    def post(self, path: str, **more: Any) -> httpx2.Response:
        return self._run(self._client.post(path, **more))

    def close(self) -> None:
        self._run(self._lifespan.__aexit__(None, None, None))
        self._run(self._client.aclose())
        self._loop.close()


Visitor = TestClient | SimulatedVisitor


@contextmanager
def visit(*settings: PageSettings) -> Iterator[Visitor]:
    """Serve a page until the block ends, and visit it."""
    if not world.is_simulated():
        with TestClient(StatusPage(*settings).make_app(), base_url=URL) as client:
            yield client
        return

    async def call(query: Any) -> Any:
        return query()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "run_in_threadpool", call)  # a real thread may not ask the simulated Kafka
        visitor = SimulatedVisitor(settings)
        try:
            yield visitor
        finally:
            visitor.close()
