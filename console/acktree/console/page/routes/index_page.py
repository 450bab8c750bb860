"""Shows the index of several topologies: a line for each, from its watcher's newest status.

Invariant: the worst thing known of a topology is its state; old figures are never shown as current ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acktree.console.page.routes.status_page import why_old
from acktree.console.page.serving.frame import Frame
from acktree.console.page.serving.watcher import PageState
from acktree.console.view.documents import PendingRecord, Status, to_json
from acktree.console.view.processes import needed_processes

WINDOW = "10m"


@dataclass(frozen=True, slots=True)
class TopologyLine:
    """A topology's line in the index: `state` is well, incomplete, stuck, old or unknown; `why` says more.

    Figures are None if unknown; `failed` is of the last ten minutes.
    """

    topology: str
    state: str
    why: str
    looked_s_ago: float
    oldest_pending_s: float | None = None
    oldest: PendingRecord | None = None
    pending: int | None = None
    failed: int | None = None
    failed_per_s: float | None = None
    dead_letters: int | None = None
    missing: tuple[str, ...] = ()


class IndexPage:
    """`/`, its twin and `/health` if a server has several topologies."""

    def __init__(self, frame: Frame, readers: Mapping[str, Callable[[], PageState]]) -> None:
        self._frame, self._readers = frame, readers

    def _lines(self) -> list[TopologyLine]:
        return [line_of(name, read()) for name, read in self._readers.items()]

    async def index(self, request: Request) -> Response:
        """Show the topologies, those that need somebody first."""
        lines = sorted(self._lines(), key=lambda line: (STATES.index(line.state), line.topology))
        fresh = [line.looked_s_ago for line in lines if line.state not in ("old", "unknown")]
        since_s = max(fresh or [line.looked_s_ago for line in lines])
        values: dict[str, Any] = {"lines": lines, "since_s": since_s, "is_old": not fresh, "window": WINDOW}
        return self._frame.render("index.html", twin="/topologies.json", live=True, **values)

    async def twin(self, request: Request) -> Response:
        return JSONResponse({"topologies": to_json(self._lines())})

    async def health(self, request: Request) -> Response:
        """Answer that the process is alive; by topology, whether it reaches a broker is in `error`."""
        errors = {name: read().error for name, read in self._readers.items()}
        return JSONResponse(
            {"alive": True, "error": next(filter(None, errors.values()), None), "errors": errors}
        )


STATES = ("stuck", "old", "unknown", "incomplete", "well")
"""In the order of the index."""


def line_of(name: str, state: PageState) -> TopologyLine:
    """Return what the index says of a topology."""
    status, old = state.status, why_old(state)
    if status is None:
        return TopologyLine(name, "unknown", old or "", state.since_s)
    missing = tuple(
        each.component if each.role == "acker" else f"{each.role} {each.component}"
        for each in needed_processes(status)
        if each.missing
    )
    what, why = _state(status, missing, old)
    return TopologyLine(
        topology=name,
        state=what,
        why=why,
        looked_s_ago=state.since_s,
        oldest_pending_s=status.totals.oldest_pending_s,
        oldest=next(iter(status.oldest), None),
        pending=status.totals.pending,
        failed=sum(each.windows[WINDOW].failed for each in status.spouts),
        failed_per_s=status.totals.failed_per_s,
        dead_letters=status.totals.dead_letters,
        missing=missing,
    )


def _state(status: Status, missing: tuple[str, ...], old: str | None) -> tuple[str, str]:
    if old is not None:
        return "old", old
    if status.stuck:
        first, more = status.stuck[0], len(status.stuck) - 1
        return "stuck", f"{first.where}: {first.text}" + (f" (and {more} more)" if more else "")
    return ("incomplete", "not all of its processes report") if missing else ("well", "")
