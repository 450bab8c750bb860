"""Gets OAUTHBEARER tokens from a user's function, which ``oauth_cb=MODULE:FUNCTION`` names.

Invariant: settings carry the function's name, never the function, so that they reach another process; it is
imported when a client is made. No token appears in a log or an error.

The function is confluent-kafka's ``oauth_cb``: it takes the value of ``sasl.oauthbearer.config`` ("" if
unset) and returns the token, the time it expires in seconds since 1970, and optionally the principal and a
dict of extensions. It is called in one of the client's threads, at the start and when four fifths of a
token's life are over; if it raises, the exception is logged, and it is called again ten seconds later.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from acktree.core.errors import NotAuthenticated, RefusedSetting
from acktree.core.kafka.settings import OAUTH_CALLBACK
from acktree.core.user_code import described, load_callable

MECHANISM = "OAUTHBEARER"

Token = tuple[Any, ...]
"""Token, expiry in seconds since 1970, then if wanted the principal, and extensions."""

log = logging.getLogger("acktree.kafka")


class TokenFunction:
    """Calls a user's function for tokens; one per client."""

    def __init__(self, place: str, function: Callable[[str], Token]) -> None:
        """``place`` is where the function is, MODULE:FUNCTION."""
        self.place, self._function = place, function
        self.failure: str | None = None
        """Why the last call had no token."""

    def __call__(self, config: str | None) -> Token:
        """Return a token, as confluent-kafka takes it; raise what the function raises, or TypeError."""
        try:
            token = self._function(config or "")
            _check(token)
        except Exception as error:
            self.failure = described(error)
            log.error("no token from oauth_cb=%s: %s", self.place, self.failure, extra={"action": "no_token"})
            raise
        self.failure = None
        return token


def _check(token: object) -> None:
    """Raise TypeError, without the token, for what is none."""
    if not isinstance(token, tuple) or not 2 <= len(token) <= 4:
        raise TypeError("it must return (token, expiry_s), or these with a principal and extensions")
    if not isinstance(token[0], str) or not isinstance(token[1], int | float):
        kinds = f"{type(token[0]).__name__} and {type(token[1]).__name__}"
        raise TypeError(f"it must return a str and a number of seconds since 1970, not {kinds}")


def token_function(settings: Mapping[str, Any]) -> TokenFunction | None:
    """Import the function that ``oauth_cb`` names; return None where it is not set.

    Raises:
        RefusedSetting: there is no such module or function, or the other settings do not use it.
    """
    place = settings.get(OAUTH_CALLBACK)
    if place is None:
        return None
    mechanism = str(settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")))
    protocol = str(settings.get("security.protocol", ""))
    method = settings.get("sasl.oauthbearer.method", "default")
    said = f"{OAUTH_CALLBACK}={place}"
    if mechanism.upper() != MECHANISM:
        raise RefusedSetting(f"{said} needs sasl.mechanism={MECHANISM}; it is {mechanism or 'not set'}")
    if not protocol.upper().startswith("SASL_"):
        needed = "security.protocol=SASL_SSL (or SASL_PLAINTEXT)"
        raise RefusedSetting(f"{said} needs {needed}; it is {protocol or 'not set'}")
    if str(method).lower() != "default":
        raise RefusedSetting(
            f"{said} and sasl.oauthbearer.method={method} are mutually exclusive: set one of them"
        )
    found = load_callable(str(place), f"MODULE:FUNCTION for {OAUTH_CALLBACK}", "auth:token", RefusedSetting)
    if isinstance(found, type):
        raise RefusedSetting(f"{said} is a class; it must be a function")
    return TokenFunction(str(place), found)


@contextmanager
def with_tokens(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield settings for a client that is made inside, with the function in place of its name.

    Raises:
        RefusedSetting: see ``token_function``.
        NotAuthenticated: the client had no token in time.
    """
    function = token_function(settings)
    if function is None:
        yield dict(settings)
        return
    try:
        yield {**settings, OAUTH_CALLBACK: function}
    except KafkaException as error:
        if error.args[0].code() != KafkaError.SASL_AUTHENTICATION_FAILED:
            raise
        reason = function.failure or "it did not return in time"
        raise NotAuthenticated(f"no token from {OAUTH_CALLBACK}={function.place}: {reason}") from error
