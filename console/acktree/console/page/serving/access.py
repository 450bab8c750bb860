"""Checks who may see the page, and whether a form may act.

Invariant: without a token only loopback is served, and only to a Host that is loopback: a foreign name that
resolves here is refused. A form carries a proof bound to the visitor's cookie; other sites have neither.
"""

import hashlib
import hmac
import ipaddress
import os
import secrets
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from acktree.wire.errors import AcktreeError

TOKEN_VARIABLE = "ACKTREE_UI_TOKEN"
SESSION_COOKIE, FORM_COOKIE = "acktree-session", "acktree-form"
MIN_TOKEN_CHARS = 16
LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))


class TokenNeeded(AcktreeError):
    """The page cannot be served beyond this machine without a token."""


def is_loopback(host: str) -> bool:
    """Return whether an address to bind is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_path(wanted: str) -> str:
    """Return where to go after the login: what was asked for, or / if that is not a path on this server.

    >>> own_path("/trace?root=1"), own_path("//evil.example"), own_path("https://evil.example")
    ('/trace?root=1', '/', '/')
    """
    is_own = wanted.startswith("/") and wanted.isascii() and wanted.isprintable()
    return wanted if is_own and not wanted.startswith("//") and "\\" not in wanted else "/"


def read_token(file: Path | None, host: str) -> str | None:
    """Return the token from a file, else from the environment, None where none is needed.

    Raises:
        TokenNeeded: the host is not loopback and there is no token, or it is too short or unreadable.
    """
    if file is not None:
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenNeeded(f"cannot read the token file {file}: {error}") from error
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and file is None:
        if is_loopback(host):
            return None
        raise TokenNeeded(
            f"{host} is not loopback, so anyone who can reach it would see the page: give a token with "
            f"--token-file FILE or in {TOKEN_VARIABLE}"
        )
    if len(token) < MIN_TOKEN_CHARS:
        raise TokenNeeded(f"the token has {len(token)} characters; at least {MIN_TOKEN_CHARS} are needed")
    return token


class Access:
    """The checks of one server; ``token`` None serves loopback without one."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._secret = secrets.token_bytes(32)

    def may_enter(self, request: Request) -> bool:
        """Return whether a request has the token, or, where none is set, asks for a loopback name."""
        if self._token is None:
            return _host_of(request) in LOOPBACK_NAMES
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return _same(request.cookies.get(SESSION_COOKIE, ""), self._session())

    def is_token(self, given: str) -> bool:
        return self._token is not None and _same(given, self._token)

    def start_session(self, response: Response) -> Response:
        """Give the visitor a session."""
        response.set_cookie(SESSION_COOKIE, self._session(), httponly=True, samesite="strict")
        return response

    def _session(self) -> str:
        return hmac.new(self._secret, (self._token or "").encode(), hashlib.sha256).hexdigest()

    def form_cookie(self, request: Request) -> str:
        """Return the visitor's form cookie, a new one where there is none."""
        return request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)

    def proof(self, cookie: str) -> str:
        """Return what a form must carry for a visitor with this cookie."""
        return hmac.new(self._secret, b"form" + cookie.encode(), hashlib.sha256).hexdigest()

    def is_own_form(self, request: Request, proof: str) -> bool:
        """Return whether a form was sent from a page of ours, to this visitor."""
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            return False
        cookie = request.cookies.get(FORM_COOKIE)
        return bool(cookie) and _same(proof, self.proof(cookie or ""))


def _host_of(request: Request) -> str:
    host = request.headers.get("host", "")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
