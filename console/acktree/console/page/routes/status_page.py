"""Shows the status, from the watcher's newest snapshot: no visitor causes a read."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acktree.console.page.pictures.bars import bar
from acktree.console.page.pictures.graph import make_graph
from acktree.console.page.pictures.sparks import make_sparks
from acktree.console.page.serving.frame import Frame
from acktree.console.page.serving.watcher import PageState, Watcher
from acktree.console.view.documents import to_json
from acktree.console.view.processes import SILENT_SHOWN_S
from acktree.console.view.reports import SILENT_AFTER_S, WINDOWS_S

OLD_AFTER_S = 15.0


class StatusPages:
    """`/`, its twin, and `/health`."""

    def __init__(self, frame: Frame, watcher: Watcher) -> None:
        self._frame, self._watcher = frame, watcher

    async def status(self, request: Request) -> Response:
        """Strip, graph, partitions, spouts, bolts, ackers, oldest."""
        window = request.query_params.get("window", "10m")
        if window not in WINDOWS_S:
            known = ", ".join(WINDOWS_S)
            raise HTTPException(404, f"there is no window {window!r}; it must be one of: {known}")
        values = {"window": window, "windows": WINDOWS_S, **status_values(self._watcher.state())}
        return self._frame.render("status.html", here="status", twin="/status.json", live=True, **values)

    async def twin(self, request: Request) -> Response:
        state = self._watcher.state()
        body = to_json(state.status) if state.status else {}
        return JSONResponse({**body, "error": state.error, "looked_s_ago": round(state.since_s, 1)})

    async def health(self, request: Request) -> Response:
        """Answer that the process is alive; whether it reaches a broker is in `error`."""
        return JSONResponse({"alive": True, "error": self._watcher.state().error})


def why_old(state: PageState) -> str | None:
    """Return why the figures are not those of now, None while they are."""
    if state.error is None and state.since_s > OLD_AFTER_S:
        return "Reading the topology is taking a long time: the broker is slow to answer."
    return state.error


def status_values(state: PageState) -> dict[str, Any]:
    """Return what the template of the status page needs."""
    status, topology = state.status, state.topology
    if status is None or topology is None:
        return {"status": None, "old": why_old(state), "since_s": state.since_s}
    stuck = {entry.where for entry in status.stuck if entry.kind == "held-frontier"}
    return {
        "status": status,
        "old": why_old(state),
        "since_s": state.since_s,
        "graph": make_graph(topology, status),
        "bars": [bar(entry, f"{entry.topic}/{entry.partition}" in stuck) for entry in status.partitions],
        "sparks": make_sparks(state.lines),
        "held_stuck": bool(stuck),
        "silent_s": SILENT_AFTER_S,
        "silent_shown_s": SILENT_SHOWN_S,
    }
