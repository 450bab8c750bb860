"""Shows dead letters: the newest ones, by reason, spout and task, and one by its coordinates."""

from dataclasses import asdict, replace
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acktree.console.page.serving.frame import Frame, wants_json
from acktree.console.page.serving.questions import BadQuery, asked_filter, refuse_key, whole_number
from acktree.console.view.cluster import Cluster
from acktree.console.view.documents import to_json
from acktree.console.view.records.dead_letter_filter import (
    DeadLetterFilter,
    UnknownFilter,
    reason_of,
    select,
)
from acktree.console.view.records.dead_letters import (
    NEWEST,
    DeadLetter,
    dead_letter_of,
    find_closing,
    read_newest,
    spouts_by_topic,
    without_payload,
)

PAGE_ROWS = 50
REASON_ROWS = 30


class DeadLetterPages:
    """`/dead-letters`, one of them, and their twins."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def dead_letters(self, request: Request) -> Response:
        try:
            return await self._list(request)
        except (BadQuery, UnknownFilter) as error:
            raise HTTPException(400, str(error)) from error

    async def _list(self, request: Request) -> Response:
        wanted = asked_filter(request.query_params)
        refuse_key(wanted, self._frame.settings.payloads)
        page = whole_number(request.query_params.get("page") or "0", "page")
        found = await self._frame.read(lambda cluster: read_newest(cluster, NEWEST))
        selected = select(found.dead_letters, wanted, found.spouts)
        matching = len(selected.dead_letters)
        pages = max(1, -(-matching // PAGE_ROWS))
        if page >= pages:
            raise BadQuery(f"page={page} is past the last one: there are {pages}, counted from 0")
        shown = [self._permitted(each) for each in selected.dead_letters[PAGE_ROWS * page :][:PAGE_ROWS]]
        values = {
            "page": page,
            "pages": pages,
            "matching": matching,
            "read": len(found.dead_letters),
            "has_older": found.has_older,
        }
        if wants_json(request):
            about = {"topology": self._frame.settings.topology, "payloads": self._frame.settings.payloads}
            about |= {"spouts": found.spouts, "unread": found.unread}
            lists = {"reasons": to_json(selected.reasons), "dead_letters": to_json(shown)}
            return JSONResponse({**about, **values, **lists})
        return self._frame.render(
            "dead_letters.html",
            here="dead_letters",
            twin=f"/dead-letters.json{query(wanted, page=page)}",
            wanted=wanted,
            spouts=found.spouts,
            reasons=selected.reasons[:REASON_ROWS],
            more_reasons=selected.reasons[REASON_ROWS:],
            unread=found.unread,
            all_reasons=sum(each.count for each in selected.reasons),
            dead_letters=shown,
            reason_of=reason_of,
            query=lambda **changes: query(wanted, **changes),
            **values,
        )

    async def dead_letter(self, request: Request) -> Response:
        partition, offset = (
            whole_number(request.path_params[name], name) for name in ("partition", "offset")
        )

        def read(cluster: Cluster) -> DeadLetter | None:
            record = cluster.record(cluster.topology.dead_letter_topic, partition, offset)
            if record is None:
                return None
            letter = dead_letter_of(record, spouts_by_topic(cluster.topology), cluster.schemas)
            return replace(letter, corrected_as=find_closing(cluster, letter))

        found = await self._frame.read(read)
        if found is None:
            text = f"no dead letter {partition}/{offset}"
            return self._frame.message_page(request, 404, "No such dead letter", text)
        found = self._permitted(found)
        if wants_json(request):
            return JSONResponse({**to_json(found), "payloads": self._frame.settings.payloads})
        twin = f"{request.url.path}.json"
        return self._frame.render("dead_letter.html", here="dead_letters", twin=twin, dead_letter=found)

    def _permitted(self, found: DeadLetter) -> DeadLetter:
        return found if self._frame.settings.payloads else without_payload(found)


def query(wanted: DeadLetterFilter, **changes: str | int) -> str:
    """Return a filter as the query of a link; changes are other values, or what a filter lacks.

    >>> query(DeadLetterFilter(reason="no city", task="count"), reason="", page=1)
    '?task=count&page=1'
    """
    values = {name: value for name, value in {**asdict(wanted), **changes}.items() if value}
    return f"?{urlencode(values, quote_via=quote)}" if values else ""
