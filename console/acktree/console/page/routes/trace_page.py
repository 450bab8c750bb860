"""Shows the trace of a record: its picture, and all its messages in order of time."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acktree.console.page.pictures.tree_picture import draw
from acktree.console.page.serving.frame import Frame, wants_json
from acktree.console.page.serving.questions import asked_of, parse_target
from acktree.console.view.cluster import Cluster
from acktree.console.view.documents import to_json
from acktree.console.view.records.payloads import RecordPayload
from acktree.console.view.records.trace import Trace, find_trace
from acktree.console.view.records.tree import At, TracedEmission
from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.wire.errors import AcktreeError

LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of an emission's history."""

    kind: str
    by: str
    reason: str
    value: str
    at: At
    payload: RecordPayload | None = None


class TracePage:
    """`/trace` and its twin."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def trace(self, request: Request) -> Response:
        asked = asked_of(request.query_params)
        if not any(asked.values()):
            if wants_json(request):
                raise HTTPException(400, "give topic, partition and offset, or root")
            return self._frame.render("trace.html", here="trace", asked=asked, trace=None, wrong=None)

        def search(cluster: Cluster) -> Trace:
            target = parse_target(cluster.topology, asked)
            return find_trace(cluster, target, limit_s=LIMIT_S, payloads=self._frame.settings.payloads)

        try:
            found = await self._frame.read(search)
        except (BrokerUnreachable, BrokerRefused):
            raise
        except AcktreeError as error:
            if wants_json(request):
                raise
            values = {"here": "trace", "asked": asked, "trace": None, "wrong": str(error)}
            return self._frame.render("trace.html", 404, **values)
        if wants_json(request):
            return JSONResponse(to_json(found))
        attempts = found.emissions[::-1]
        return self._frame.render(
            "trace.html",
            here="trace",
            twin=f"/trace.json?{request.url.query}",
            asked=asked,
            wrong=None,
            trace=found,
            attempts=attempts,
            pictures=[draw(emission) for emission in attempts],
            rows=[rows_of(emission) for emission in attempts],
            reasons=[failure_of(emission) for emission in attempts],
        )


def failure_of(emission: TracedEmission) -> str | None:
    """Return the reason of a failure, as the result says it, else as the last message that gives one."""
    result = emission.result
    said = [result.reason if result else None, *(message.reason for message in reversed(emission.messages))]
    return next(filter(None, said), None)


def rows_of(emission: TracedEmission) -> list[Row]:
    """Return everything that was said of an emission, in order of time."""
    rows = [Row("tuple", "", "", found.edge, found.at, found.payload) for found in emission.tuples]
    messages = ([emission.init] if emission.init else []) + list(emission.messages)
    rows += [
        Row(message.kind, message.task, message.reason or "", message.value or "", message.at)
        for message in messages
    ]
    if (result := emission.result) is not None:
        by = f"acker {result.acker}" + (f", of {result.task}" if result.task else "")
        rows.append(Row(result.kind, by, result.reason or "", "", result.at))
    return sorted(rows, key=lambda row: (row.at.time_ms, row.at.topic, row.at.partition, row.at.offset))
