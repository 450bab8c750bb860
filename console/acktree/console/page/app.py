"""The status page as an application: which page answers where, and who may enter.

Invariant: pages read, the same documents as the command line; only with actions allowed does a confirmed
form act, and then as its plan said.
"""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from acktree.console.page.access import Access
from acktree.console.page.dead_letter_pages import DeadLetterPages
from acktree.console.page.forms import read_form
from acktree.console.page.frame import Frame, PageSettings, wants_json
from acktree.console.page.pending_page import PendingPage
from acktree.console.page.replay_page import ReplayPage
from acktree.console.page.status_page import StatusPages
from acktree.console.page.trace_page import TracePage
from acktree.console.page.watcher import Watcher
from acktree.schemas.errors import AcktreeError

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_OPEN_PATHS = ("/login", "/static/", "/health")


class StatusPage:
    """The pages of one topology."""

    def __init__(self, settings: PageSettings) -> None:
        self._frame = Frame(settings)
        self._access = Access(settings.token)
        self._watcher = Watcher(settings.bootstrap, settings.topology, settings.user)

    def make_app(self) -> Starlette:
        """Return the application; it starts and stops the watcher."""

        @asynccontextmanager
        async def lifespan(_app: Starlette) -> Any:
            self._watcher.start()
            yield
            self._watcher.stop()
            self._frame.close()

        return Starlette(
            routes=self._routes(),
            lifespan=lifespan,
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=self._guard)],
            exception_handlers={
                HTTPException: self._frame.on_http_error,
                AcktreeError: self._frame.on_error,
                Exception: self._frame.on_crash,
            },
        )

    def _routes(self) -> list[BaseRoute]:
        status = StatusPages(self._frame, self._watcher)
        pending, trace = PendingPage(self._frame).pending, TracePage(self._frame).trace
        dead_letters, replay = DeadLetterPages(self._frame), ReplayPage(self._frame, self._access).replay
        return [
            Route("/", status.status),
            Route("/status.json", status.twin),
            Route("/health", status.health),
            Route("/pending", pending),
            Route("/pending.json", pending),
            Route("/trace", trace),
            Route("/trace.json", trace),
            Route("/dead-letters", dead_letters.dead_letters),
            Route("/dead-letters.json", dead_letters.dead_letters),
            Route("/dead-letters/{partition}/{offset}.json", dead_letters.dead_letter),
            Route("/dead-letters/{partition}/{offset}", dead_letters.dead_letter),
            Route("/replay", replay, methods=["GET", "POST"]),
            Route("/login", self._login, methods=["GET", "POST"]),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ]

    async def _guard(self, request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        path = request.url.path
        if not path.startswith(_OPEN_PATHS) and not self._access.may_enter(request):
            response = self._refuse(request)
        else:
            response = await call(request)
        response.headers.update(_HEADERS)
        return response

    def _refuse(self, request: Request) -> Response:
        if self._frame.settings.token is None:
            text = "without a token this page is served to this machine only, under the name localhost"
            return PlainTextResponse(text, 403)
        if wants_json(request):
            return JSONResponse({"error": "a token is needed: Authorization: Bearer TOKEN"}, 401)
        return RedirectResponse("/login", 303)

    async def _login(self, request: Request) -> Response:
        """Take the token once, and remember the visitor by a cookie."""
        if request.method == "GET":
            return self._frame.render("login.html", wrong=None)
        form = await read_form(request)
        if self._access.is_token(form.get("token", "").strip()):
            return self._access.start_session(RedirectResponse("/", 303))
        return self._frame.render("login.html", 403, wrong="That is not the token.")
