"""The frame of all pages: settings, templates, the reader, and pages for errors.

Invariant: an error of the broker is a page that says so, never a traceback.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from acktree.console.page.serving.reader import SharedCluster
from acktree.console.page.serving.rendering import make_environment, render, rooted
from acktree.console.view.cluster import Cluster
from acktree.core.errors import BrokerRefused, BrokerUnreachable, NotAuthorized
from acktree.core.kafka.settings import Settings
from acktree.wire.errors import AcktreeError

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The settings of the page; ``token`` None serves loopback only, ``payloads`` False shows none.

    ``base`` is the path of the topology's pages if it shares the server, as /t/NAME.
    """

    bootstrap: str
    topology: str
    user: Settings
    token: str | None = None
    allow_actions: bool = False
    payloads: bool = True
    base: str = ""


class Frame:
    """Draws pages, and reads the cluster for them."""

    def __init__(self, settings: PageSettings) -> None:
        self.settings = settings
        self._templates = make_environment()
        self._reader = SharedCluster(settings.bootstrap, settings.topology, settings.user)

    async def read(self, query: Callable[[Cluster], Found]) -> Found:
        """Return what a function finds on the cluster; other visitors are served meanwhile."""

        def ask() -> Found:
            with self._reader.cluster() as cluster:
                return query(cluster)

        return await run_in_threadpool(ask)

    def render(self, name: str, code: int = 200, **values: Any) -> HTMLResponse:
        """Return a page of a template."""
        common: dict[str, Any] = {"here": "", "twin": "", "live": False, "topology": self.settings.topology}
        base = self.settings.base
        common |= {"actions": self.settings.allow_actions, "payloads": self.settings.payloads}
        common |= {"several": bool(base)}
        return HTMLResponse(rooted(render(self._templates, name, **{**common, **values}), base), code)

    def close(self) -> None:
        self._reader.close()

    # What a page cannot.

    def error_pages(self) -> Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]:
        """Return what shows an error as a page of this frame, by the error's class."""
        return {
            HTTPException: self.on_http_error,
            AcktreeError: self.on_error,
            Exception: self.on_crash,
        }

    def message_page(self, request: Request, code: int, head: str, text: str) -> Response:
        """Return a page, or its twin, that is one sentence."""
        if wants_json(request):
            return JSONResponse({"error": text}, code)
        return self.render("message.html", code, head=head, text=text)

    async def on_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            is_unsaid = error.detail == HTTPStatus.NOT_FOUND.phrase
            text = f"{request.scope['path']} is not a page of this server." if is_unsaid else error.detail
            return self.message_page(request, 404, "Page not found", text)
        return self.message_page(request, error.status_code, "Request rejected", error.detail)

    async def on_error(self, request: Request, error: Exception) -> Response:
        if isinstance(error, NotAuthorized):
            return self.message_page(request, 403, "The broker denied access", f"{error}.")
        if isinstance(error, BrokerUnreachable | BrokerRefused):
            text = f"{error}. The page keeps running: reload it."
            return self.message_page(request, 503, "The broker is not answering", text)
        return self.message_page(request, 404, "Not found", str(error))

    async def on_crash(self, request: Request, error: Exception) -> Response:
        text = f"{type(error).__name__}; see the log."
        return self.message_page(request, 500, "Internal error", text)


def wants_json(request: Request) -> bool:
    """Return whether the twin of a page is asked for."""
    return str(request.scope["path"]).endswith(".json")
