"""Dead letters: the newest ones, and one by its coordinates."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acktree.console.page.frame import Frame, wants_json
from acktree.console.page.questions import whole_number
from acktree.console.view.cluster import Cluster
from acktree.console.view.dead_letters import DeadLetter, dead_letter_of, read_dead_letters
from acktree.console.view.documents import to_json

MAX_ROWS = 200


class DeadLetterPages:
    """`/dead-letters`, one of them, and their twins."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    async def dead_letters(self, request: Request) -> Response:
        found = await self._frame.read(lambda cluster: read_dead_letters(cluster, MAX_ROWS))
        if wants_json(request):
            topology = self._frame.settings.topology
            return JSONResponse({"topology": topology, "dead_letters": to_json(found)})
        return self._frame.render(
            "dead_letters.html", here="dead_letters", twin="/dead-letters.json", dead_letters=found
        )

    async def dead_letter(self, request: Request) -> Response:
        partition, offset = (
            whole_number(request.path_params[name], name) for name in ("partition", "offset")
        )

        def read(cluster: Cluster) -> DeadLetter | None:
            record = cluster.record(cluster.topology.dead_letter_topic, partition, offset)
            return None if record is None else dead_letter_of(record)

        found = await self._frame.read(read)
        if found is None:
            text = f"no dead letter {partition}/{offset}"
            return self._frame.message_page(request, 404, "There is no such dead letter", text)
        if wants_json(request):
            return JSONResponse(to_json(found))
        twin = f"{request.url.path}.json"
        return self._frame.render("dead_letter.html", here="dead_letters", twin=twin, dead_letter=found)
