"""The status page as an application: routes each topology's pages, and checks who may enter.

Invariant: pages read the same documents as the command line; only with actions allowed does a confirmed form
act, and then as its plan said. One topology has the server to itself; several have a path each, and one login
for all of them.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from acktree.console.page.routes.index_page import IndexPage
from acktree.console.page.routes.topology_pages import TopologyPages
from acktree.console.page.serving.access import Access, own_path
from acktree.console.page.serving.forms import read_form
from acktree.console.page.serving.frame import Frame, PageSettings, wants_json
from acktree.console.page.serving.watcher import PageState

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
OPEN_PATH = re.compile("/login|/static/.+")
"""What needs no token; `/health` answers everybody, and in full those who may enter."""


class StatusPage:
    """The pages of one topology, or of several, each below /t/NAME, with an index."""

    def __init__(self, first: PageSettings, *more: PageSettings) -> None:
        """The token of the first is that of all."""
        self._access = Access(first.token)
        settings = (
            [replace(each, base=place_of(each.topology)) for each in (first, *more)] if more else [first]
        )
        self.topologies = [TopologyPages(each, self._access) for each in settings]
        self._frame = Frame(replace(first, topology="")) if more else self.topologies[0].frame

    def readers(self) -> Mapping[str, Callable[[], PageState]]:
        """Return by topology what returns its newest status without waiting."""
        return {each.name: each.watcher.state for each in self.topologies}

    def make_app(self) -> Starlette:
        """Return the application; it starts and stops the watchers."""

        @asynccontextmanager
        async def lifespan(_app: Starlette) -> Any:
            for each in self.topologies:
                each.start()
            yield
            for each in self.topologies:
                each.begin_stop()
            for each in self.topologies:
                each.stop()

        return Starlette(
            routes=self._routes(),
            lifespan=lifespan,
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=self._guard)],
            exception_handlers=self._frame.error_pages(),
        )

    def _routes(self) -> list[BaseRoute]:
        common: list[BaseRoute] = [
            Route("/login", self._login, methods=["GET", "POST"]),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ]
        if len(self.topologies) == 1:
            return [*self.topologies[0].routes(), *common]
        index = IndexPage(self._frame, self.readers())
        return [
            Route("/", index.index),
            Route("/topologies.json", index.twin),
            Route("/health", index.health),
            Route("/t/", lambda _request: RedirectResponse("/", 303)),
            *(Mount(place_of(each.name), each.make_app()) for each in self.topologies),
            *common,
        ]

    async def _guard(self, request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        # What the router decides by; request.url can be what the Host header says.
        path = request.scope["path"]
        if OPEN_PATH.fullmatch(path) or self._access.may_enter(request):
            response = await call(request)
        elif path == "/health":
            response = JSONResponse({"alive": True})
        else:
            response = self._refuse(request)
        response.headers.update(_HEADERS)
        return response

    def _refuse(self, request: Request) -> Response:
        if self._frame.settings.token is None:
            text = "without a token this page is served to this machine only, under the name localhost"
            return PlainTextResponse(text, 403)
        if wants_json(request):
            return JSONResponse({"error": "a token is needed: Authorization: Bearer TOKEN"}, 401)
        path, query = quote(request.scope["path"]), request.scope["query_string"].decode("latin-1")
        asked = path + (f"?{query}" if query else "")
        wanted = "" if asked == "/" or request.method != "GET" else f"?{urlencode({'next': asked})}"
        return RedirectResponse(f"/login{wanted}", 303)

    async def _login(self, request: Request) -> Response:
        """Take the token once, remember the visitor by a cookie, and show the page that was asked for."""
        wanted = request.query_params.get("next", "/")
        if request.method == "GET":
            return self._frame.render("login.html", wrong=None, wanted=wanted)
        form = await read_form(request)
        if self._access.is_token(form.get("token", "").strip()):
            return self._access.start_session(RedirectResponse(own_path(wanted), 303))
        return self._frame.render("login.html", 403, wrong="That is not the token.", wanted=wanted)


def place_of(topology: str) -> str:
    """Return where the pages of one of several topologies are.

    >>> place_of("word-count")
    '/t/word-count'
    """
    return f"/t/{quote(topology, safe='')}"
