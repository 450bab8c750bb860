"""Finds free ports of the loopback interface, and checks a port to serve on."""

import random
import socket
from contextlib import ExitStack

from acktree.wire.errors import AcktreeError

LOOPBACK = "127.0.0.1"
# Below the range from which systems give ports to outgoing connections: a client that tries a port of that
# range before its server listens can connect to itself, and so take the port away from the server.
FIRST_PORT, LAST_PORT = 20_000, 32_000
TRIES = 200


class PortUnavailable(AcktreeError):
    """The requested port is in use by another program, or not allowed."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 takes a free one. Raises PortUnavailable."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PortUnavailable(
            f"cannot serve on {host} port {port}: {reason}; --port 0 takes a free port"
        ) from error


def refusal(port: int) -> str | None:
    """Return why a server cannot listen on `port` of the loopback interface, None if it can."""
    with socket.socket() as probe:
        return _bind(probe, port)


def listens(port: int) -> bool:
    """Return whether a server listens on `port` of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports; another process may take one immediately, so be ready to retry."""
    ports: list[int] = []
    with ExitStack() as held:
        for port in random.sample(range(FIRST_PORT, LAST_PORT), TRIES):
            if len(ports) == count:
                break
            if _bind(held.enter_context(socket.socket()), port) is None:
                ports.append(port)
    assert len(ports) == count, f"of {TRIES} ports from {FIRST_PORT} only {len(ports)} are free"
    return ports


def _bind(probe: socket.socket, port: int) -> str | None:
    probe.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
    )  # as Java does: a closed connection does not count as a user
    try:
        probe.bind((LOOPBACK, port))
    except OSError as error:
        return error.strerror
    return None
