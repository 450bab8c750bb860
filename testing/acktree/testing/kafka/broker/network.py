"""Simulates the network between a process and the broker: how long a request takes, and whether it arrives.

Invariant: every call of a client passes here first, so a fault may strike between any two of them; a dead
process makes no request.
"""

import math
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.virtual.kernel import Kernel, Killed, Process

RETRY_S = 0.1
"""How long a client waits before it asks a broker again that did not answer."""


class Network:
    """The network between one process and the cluster."""

    def __init__(self, cluster: Cluster, process: Process, delay_s: Callable[[], float]) -> None:
        self.cluster, self.process, self.delay_s = cluster, process, delay_s
        self.kernel: Kernel = cluster.kernel
        self.is_cut_off: Callable[[], bool] = lambda: False
        self.lose_response: Callable[[Process, str], bool] = lambda _process, _call: False
        self.bytes_per_s: Callable[[], float] = lambda: math.inf
        """How fast records go to the broker, one batch after the other; other requests take no room."""
        self._free_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether the broker answers this process at present."""
        return self.cluster.is_up and not self.is_cut_off()

    def transfer_s(self, size: int) -> float:
        """Put a batch on the way; return how long it takes, behind those that are on the way already."""
        self._free_s = max(self._free_s, self.kernel.now_s) + size / self.bytes_per_s()
        return self._free_s - self.kernel.now_s

    def enter(self, call: str) -> None:
        """Begin a call of a client that takes no time."""
        self.kernel.refuse_real_threads()
        if not self.process.is_alive:
            raise Killed
        self.kernel.on_call(self.process, call)
        self.process.calls += 1

    def turn(self, call: str) -> None:
        """Begin a call that others may overtake, so that a loop of such calls lets time pass."""
        self.enter(call)
        self.kernel.sleep(2e-6)

    def request(self, call: str, timeout_s: float | None, *, is_retriable: bool = False) -> None:
        """Let a request travel to the broker; wait for a broker that is away.

        Raises:
            KafkaException: it does not answer within the timeout.
        """
        self.enter(call)
        delay_s = self.delay_s()
        until_s = self.kernel.now_s + (float("inf") if timeout_s is None or timeout_s < 0 else timeout_s)
        arrives_s = self.kernel.now_s + delay_s
        self.kernel.sleep(min(delay_s, until_s - self.kernel.now_s))
        while not self.is_up or self.kernel.now_s < arrives_s:
            if self.kernel.now_s >= until_s:
                raise timed_out(is_retriable=is_retriable)
            self.kernel.sleep(min(RETRY_S, max(until_s - self.kernel.now_s, 1e-3)))

    def respond(self, call: str, *, is_retriable: bool = False) -> None:
        """Let the answer travel back. Raises KafkaException: it is lost, and what was asked for is done."""
        if self.lose_response(self.process, call):
            self.kernel.sleep(1.0)
            raise timed_out(is_retriable=is_retriable)
        self.kernel.sleep(self.delay_s())


def timed_out(*, is_retriable: bool = False) -> KafkaException:
    """Return the error of a request that was not answered in time; calls of transactions say "retriable"."""
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "Local: Timed out", retriable=is_retriable))
