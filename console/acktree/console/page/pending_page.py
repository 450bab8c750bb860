"""The records that are not done, the oldest emission first."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acktree.console.page.frame import Frame, wants_json
from acktree.console.page.questions import parse_age, parse_limit
from acktree.console.view.documents import pending_document
from acktree.console.view.snapshot import read_snapshot
from acktree.console.view.status import oldest_pending

MAX_ROWS = 1_000


class PendingPage:
    """`/pending` and its twin."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def pending(self, request: Request) -> Response:
        older_than = request.query_params.get("older_than", "").strip()
        older_s = parse_age(older_than)
        limit = parse_limit(request.query_params.get("limit", "").strip(), MAX_ROWS)
        snapshot = await self._frame.read(read_snapshot)
        found = oldest_pending(snapshot, limit, older_s)
        if wants_json(request):
            topology = self._frame.settings.topology
            return JSONResponse(pending_document(topology, found, snapshot.notes, snapshot.is_complete))
        twin = f"/pending.json?{request.url.query}" if request.url.query else "/pending.json"
        values: dict[str, Any] = {"limit": limit, "found": found, "notes": snapshot.notes}
        return self._frame.render("pending.html", here="pending", twin=twin, older_than=older_than, **values)
