"""Finds out why a client is refused: librdkafka retries forever and passes the reason only to a callback.

Invariant: only an error that no retry can change is a refusal: credentials, certificates, a mechanism.
"""

from confluent_kafka import KafkaError

from acktree.core.errors import NotAuthenticated

_PERMANENT = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_PERMANENT_TEXTS = ("certificate verify failed", "tls alert")
_CERTIFICATE = "set ssl.ca.location to the authority that signed the broker's certificate"
_OWN_CERTIFICATE = (
    "the broker requires a client certificate that it trusts: set ssl.certificate.location and "
    "ssl.key.location"
)
_CREDENTIALS = "check sasl.mechanism, sasl.username and the password, and that the broker knows them"


class ClientErrors:
    """An ``error_cb`` that keeps the errors it was called with; one per client."""

    def __init__(self) -> None:
        self._refusals: list[str] = []
        self._last = ""
        self._is_disconnected = False

    def __call__(self, error: KafkaError) -> None:
        text = error.str()
        if error.code() in _PERMANENT or any(part in text for part in _PERMANENT_TEXTS):
            self._refusals.append(text)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_disconnected = True
        else:
            self._last = text

    def refusal(self, bootstrap: str) -> NotAuthenticated | None:
        """Return the error that makes any retry useless, None if a retry may help."""
        if not self._refusals:
            return None
        text = self._refusals[-1]
        if "verify failed" in text:
            return NotAuthenticated(
                f"the certificate of the broker at {bootstrap} is not trusted; {_CERTIFICATE}, and use a "
                f"host name that it was issued for ({_cause(text)})"
            )
        if "alert" in text:
            return NotAuthenticated(
                f"the broker at {bootstrap} refused this client's certificate; {_OWN_CERTIFICATE} "
                f"({_cause(text)})"
            )
        return NotAuthenticated(
            f"the broker at {bootstrap} rejected this client's credentials; {_CREDENTIALS} ({_cause(text)})"
        )

    def hint(self) -> str:
        """Return what else was reported, to be appended to the error that no broker answers."""
        if self._last:
            return f" ({_cause(self._last)})"
        if self._is_disconnected:
            return " (it closes the connection: if it requires TLS or SASL, set security.protocol)"
        return ""


def _cause(text: str) -> str:
    """Return librdkafka's text without its address and its state.

    >>> _cause("ssl://a:1/bootstrap: SSL handshake failed: bad (after 5ms in state SSL_HANDSHAKE)")
    'SSL handshake failed: bad'
    """
    _, _, cause = text.partition("/bootstrap: ")
    return (cause or text).partition(" (after ")[0]
