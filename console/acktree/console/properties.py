"""Reads a client's librdkafka properties: from `-X`, the environment, a file.

A secret on a command line can be read by everyone who may list processes, so it is refused there; pass it in
a file or the environment. A property passes through untouched, and no value appears in any error's text.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from acktree.core.kafka.settings import OAUTH_CALLBACK
from acktree.wire.errors import AcktreeError

ENVIRONMENT = "ACKTREE_KAFKA_"
SECRET = re.compile(
    r"(^|\.)(password|passphrase|secret|token|user\.info|key\.pem|jaas\.config)$", re.IGNORECASE
)
"""The end of a property that is a secret, by any of its names: librdkafka knows some by several."""
PASSWORD_IN_URL = re.compile("://[^/@]*:.*@")


class BadProperties(AcktreeError):
    """A properties file cannot be used, or a secret was given where others can read it."""


def client_properties(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None
) -> dict[str, str]:
    """Return the properties to use: a flag wins over the environment, that over the file.

    Raises:
        BadProperties: a secret is given as a flag, or the file cannot be read.
    """
    for key in sorted(flags):
        if SECRET.search(key) or PASSWORD_IN_URL.search(flags[key]):
            raise BadProperties(
                f"{key} is refused on the command line, where other users can read it; put it into the "
                f"environment as {variable_of(key)}, or into a file for --command-config"
            )
    given = {
        _key_of(variable): value
        for variable, value in environment.items()
        if variable.startswith(ENVIRONMENT)
    }
    return {**(read_properties(file) if file else {}), **given, **flags}


def _key_of(variable: str) -> str:
    """Return the property of an environment variable; no property but ``oauth_cb`` has an underscore."""
    key = variable.removeprefix(ENVIRONMENT).lower()
    return key if key == OAUTH_CALLBACK else key.replace("_", ".")


def variable_of(key: str) -> str:
    """Return the environment variable of a property.

    >>> variable_of("sasl.password")
    'ACKTREE_KAFKA_SASL_PASSWORD'
    """
    return ENVIRONMENT + key.upper().replace(".", "_")


def read_properties(path: Path) -> dict[str, str]:
    """Return a file of KEY=VALUE lines as Kafka's own tools take it; # begins a comment line.

    Raises:
        BadProperties: it cannot be read, or a line has no "="; the text names the line, not its content.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadProperties(f"the properties file {path} cannot be read: {reason}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not (key.strip() and equals):
            raise BadProperties(f"line {number} of {path} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
