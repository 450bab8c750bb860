"""Functions for ``oauth_cb``: tokens that nobody has signed, as Kafka's own broker takes them for tests."""

import base64
import json
import threading
import time
from typing import Any

USER = "bearer"
LIFE_S = 600
SECRET = "canary-token-77d1"
CALLS: list[str] = []
"""What the functions were called with."""
CALLED = threading.Semaphore(0)
"""One for each call."""
NOT_A_FUNCTION = 7


def token(config: str) -> tuple[str, float]:
    """Return a token for USER."""
    return _token(config, LIFE_S)


def short(config: str) -> tuple[str, float, str, dict[str, str]]:
    """Return a token for a few seconds, in the long form."""
    return (*_token(config, 4), USER, {})


def failing(config: str) -> tuple[str, float]:
    """Have none."""
    CALLS.append(config)
    raise RuntimeError("no token today")


def wrong(config: str) -> Any:
    """Return what is no token."""
    return SECRET, "soon"


class Maker:
    """No function."""


def _token(config: str, life_s: float) -> tuple[str, float]:
    CALLS.append(config)
    CALLED.release()
    now_s = time.time()
    claims = {"sub": USER, "iat": now_s, "exp": now_s + life_s}
    return f"{BEGIN}.{_part(claims)}.", now_s + life_s


def _part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


BEGIN = _part({"alg": "none"})
"""How every token begins."""
