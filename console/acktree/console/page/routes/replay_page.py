"""Shows the replay page: a plan, and its confirmation by the page's own form."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from acktree.console.page.routes.actions import ASKED, Actions, Outcome, ShownPlan
from acktree.console.page.serving.access import FORM_COOKIE, Access
from acktree.console.page.serving.forms import read_form
from acktree.console.page.serving.frame import Frame
from acktree.console.page.serving.questions import FILTER, BadQuery, asked_filter, refuse_key
from acktree.console.view.cluster import Cluster
from acktree.console.view.records.dead_letter_filter import UnknownFilter
from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.wire.errors import AcktreeError


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
        asked |= {name: fields.get(name, "") for name in FILTER}
        ticket = fields.get("ticket", "") if is_confirmed else None
        values, code = await self._outcome(asked, ticket)
        cookie = self._access.form_cookie(request)
        proof = self._access.proof(cookie)
        response = self._frame.render("replay.html", code, here="replay", asked=asked, proof=proof, **values)
        response.set_cookie(FORM_COOKIE, cookie, httponly=True, samesite="strict")
        return response

    async def _outcome(self, asked: Mapping[str, str], ticket: str | None) -> tuple[dict[str, Any], int]:
        """Plan, or with a ticket carry out; return what the template shows, and the status code."""
        nothing: dict[str, Any] = {"shown": None, "outcome": None, "wrong": None, "changed": False}
        if ticket is None and not any(asked[name] for name in ASKED):
            return nothing, 200

        def act(cluster: Cluster) -> ShownPlan | Outcome:
            if ticket is None:
                refuse_key(asked_filter(asked), self._frame.settings.payloads)
                return self._actions.plan(cluster, asked)
            return self._actions.carry_out(cluster, ticket)

        try:
            found = await self._frame.read(act)
        except (BrokerUnreachable, BrokerRefused):
            raise
        except (BadQuery, UnknownFilter) as error:
            return {**nothing, "wrong": str(error)}, 400
        except AcktreeError as error:
            return {**nothing, "wrong": str(error)}, 404
        if isinstance(found, Outcome):
            return {**nothing, "outcome": found}, 200
        return {**nothing, "shown": found, "changed": ticket is not None}, 200
