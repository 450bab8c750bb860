"""A broker's network that a test can cut or slow down: a proxy on loopback that its clients do not leave."""

import math
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SIZE = struct.Struct(">i")


class Proxy:
    """Passes Kafka's protocol on to one broker, and gives its own address where the broker names itself."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._broker = host, int(port)
        self.bytes_per_s = math.inf
        """How fast each connection takes requests."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._named = host.encode() + SIZE.pack(int(port)), host.encode() + SIZE.pack(self.port)
        self._open: set[socket.socket] = set()
        self._accept()

    def cut(self) -> None:
        """Close the port and every connection."""
        self._close(self._listening)
        for each in list(self._open):
            self._close(each)

    def restore(self) -> None:
        """Listen again, at the same port."""
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._accept()

    def _accept(self) -> None:
        listening = self._listening

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    try:
                        broker = socket.create_connection(self._broker)
                    except OSError:
                        client.close()
                        raise
                    self._open |= {client, broker}
                    self._start(client, broker, is_answer=False)
                    self._start(broker, client, is_answer=True)

        threading.Thread(target=serve, daemon=True).start()

    def _start(self, source: socket.socket, target: socket.socket, *, is_answer: bool) -> None:
        def pass_on() -> None:
            with suppress(OSError, struct.error), source.makefile("rb") as frames:
                while True:
                    size = frames.read(SIZE.size)
                    frame = frames.read(SIZE.unpack(size)[0])
                    if not is_answer and self.bytes_per_s < math.inf:
                        time.sleep(len(frame) / self.bytes_per_s)
                    target.sendall(size + (frame.replace(*self._named) if is_answer else frame))
            self._close(source)
            self._close(target)

        threading.Thread(target=pass_on, daemon=True).start()

    def _close(self, each: socket.socket) -> None:
        self._open.discard(each)
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def proxy_of(bootstrap: str) -> Iterator[Proxy]:
    """Run a proxy in front of a broker; its clients are cut off in the end."""
    proxy = Proxy(bootstrap)
    try:
        yield proxy
    finally:
        proxy.cut()
