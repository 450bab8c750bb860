"""The replay page: a plan, and its confirmation by the page's own form."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from acktree.console.page.access import FORM_COOKIE, Access
from acktree.console.page.actions import ASKED, Actions
from acktree.console.page.forms import read_form
from acktree.console.page.frame import Frame
from acktree.console.view.cluster import Cluster
from acktree.schemas.errors import AcktreeError, BrokerRefused, BrokerUnreachable


class ReplayPage:
    """`/replay`: nothing is done before its own form comes back, and then once."""

    def __init__(self, frame: Frame, access: Access) -> None:
        self._frame, self._access = frame, access
        self._actions = Actions(frame.settings.bootstrap, frame.settings.user)

    async def replay(self, request: Request) -> Response:
        if not self._frame.settings.allow_actions:
            text = "this page is read-only; acktree ui --allow-actions lets visitors replay"
            raise HTTPException(403, text)
        fields: Mapping[str, str] = request.query_params
        if is_confirmed := request.method == "POST":
            fields = await read_form(request)
            if not self._access.is_own_form(request, fields.get("proof", "")):
                raise HTTPException(403, "this form is not from this page; plan the replay again")
        asked = {name: fields.get(name, "").strip() for name in ASKED}
        ticket = fields.get("ticket", "") if is_confirmed else None
        values, code = await self._outcome(asked, ticket)
        cookie = self._access.form_cookie(request)
        proof = self._access.proof(cookie)
        response = self._frame.render("replay.html", code, here="replay", asked=asked, proof=proof, **values)
        response.set_cookie(FORM_COOKIE, cookie, httponly=True, samesite="strict")
        return response

    async def _outcome(self, asked: Mapping[str, str], ticket: str | None) -> tuple[dict[str, Any], int]:
        """Plan, or with a ticket carry out; return what the template shows, and the status code."""
        nothing: dict[str, Any] = {"shown": None, "done": None, "wrong": None, "changed": False}
        if not any(asked.values()):
            return nothing, 200

        def act(cluster: Cluster) -> dict[str, Any]:
            if ticket is None:
                return {"shown": self._actions.plan(cluster, asked)}
            outcome = self._actions.carry_out(cluster, asked, ticket)
            return {"done": outcome} if isinstance(outcome, list) else {"shown": outcome, "changed": True}

        try:
            return {**nothing, **await self._frame.read(act)}, 200
        except (BrokerUnreachable, BrokerRefused):
            raise
        except AcktreeError as error:
            return {**nothing, "wrong": str(error)}, 404
