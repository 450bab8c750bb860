"""Stops the children of a process when the process ends, however it ends.

SIGTERM and Ctrl-C unwind it, so that every ``with`` stops its processes. If nothing can unwind (SIGKILL),
Linux ends the children; on other systems they would be left.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PR_SET_PDEATHSIG = 1


def die_with_owner() -> Callable[[], None] | None:
    """Return the ``preexec_fn`` that makes a child die with the thread that started it, if this is Linux.

    Start it from a thread that lives as long as the process.
    """
    if sys.platform != "linux":
        return None
    prctl, owner = ctypes.CDLL(None).prctl, os.getpid()

    def ask_the_kernel() -> None:
        """Only a system call: nothing else is safe after a fork."""
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != owner:  # it died between the fork and the request
            os._exit(1)

    return ask_the_kernel


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT raise SystemExit in the main thread, with the exit code that shells give it.

    KeyboardInterrupt would not do for SIGINT: py4j logs one with its traceback.
    """

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
