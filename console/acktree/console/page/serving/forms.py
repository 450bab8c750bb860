"""Parses forms as browsers send them, up to a size limit."""

from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_FORM_BYTES = 100_000


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of a field sent twice the last."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, "the form is too large")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
