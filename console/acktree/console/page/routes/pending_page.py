"""Shows the pending records that are known one by one, oldest first."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acktree.console.page.serving.frame import Frame, wants_json
from acktree.console.page.serving.questions import parse_age, parse_limit
from acktree.console.view.documents import pending_document
from acktree.console.view.snapshot import read_with_reports
from acktree.console.view.source_view import oldest_pending
from acktree.console.view.status import make_status, source_views
from acktree.core.reports.stats import OLDEST_ROOTS

MAX_ROWS = 1_000


class PendingPage:
    """`/pending` and its twin."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def pending(self, request: Request) -> Response:
        older_than = request.query_params.get("older_than", "").strip()
        older_s = parse_age(older_than)
        limit = parse_limit(request.query_params.get("limit", "").strip(), MAX_ROWS)
        snapshot, reports = await self._frame.read(read_with_reports)
        status = make_status(snapshot, reports)
        found = oldest_pending(source_views(snapshot, reports), limit, older_s or None)
        if wants_json(request):
            return JSONResponse(pending_document(status, found))
        twin = f"/pending.json?{request.url.query}" if request.url.query else "/pending.json"
        values: dict[str, Any] = {
            "limit": limit,
            "found": found,
            "status": status,
            "oldest_roots": OLDEST_ROOTS,
        }
        return self._frame.render("pending.html", here="pending", twin=twin, older_than=older_than, **values)
