"""Names what the tests of a module leave behind: threads, Kafka clients, processes, descriptors.

A client that nobody closed logs into a later test and counts in its figures, and each time it looks like
another defect. So a module ends as it began, except for what fixtures of the session hold.
"""

import gc
import os
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from deadlines import stretched

CLIENT_THREAD = "rdk:main"
"""The name of the thread that librdkafka starts for each client."""
DESCRIPTORS = 20
"""How many more descriptors a module may end with: modules that it imports keep some."""
PER_PROCESS = {"acktree-writer"}
"""Threads that a process starts once, and keeps."""
LEAVE_S = stretched(15.0)
"""How long what was closed may take to end."""


@dataclass(frozen=True)
class ProcessState:
    """What a process holds; a Kafka client stands for itself by its main thread."""

    threads: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    processes: frozenset[str] = frozenset()
    descriptors: frozenset[str] = frozenset()

    def beside(self, other: "ProcessState") -> list[str]:
        """Return what this has that another has not, a line each."""
        left = [f"thread {name}" for name in self.threads - other.threads]
        left += [f"Kafka client, thread {name}" for name in self.clients - other.clients]
        left += [f"process {name}" for name in self.processes - other.processes]
        opened = self.descriptors - other.descriptors
        if len(opened) > DESCRIPTORS:
            left += [f"{len(opened)} descriptors, such as {', '.join(sorted(opened)[:5])}"]
        return sorted(left)

    def __or__(self, other: "ProcessState") -> "ProcessState":
        return ProcessState(
            self.threads | other.threads,
            self.clients | other.clients,
            self.processes | other.processes,
            self.descriptors | other.descriptors,
        )


def state_now() -> ProcessState:
    """Return what this process holds now."""
    threads = {
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if thread.name not in PER_PROCESS
    }
    clients, processes = set(), set()
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().strip() == CLIENT_THREAD:
                clients.add(task.name)
            processes.update((task / "children").read_text().split())
        except OSError:
            continue  # the thread has ended
    commands = {f"{pid}: {command}" for pid in processes if (command := _command_of(pid))}
    descriptors = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            descriptors.add(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
        except OSError:
            continue  # it was that of this listing
    return ProcessState(frozenset(threads), frozenset(clients), frozenset(commands), frozenset(descriptors))


def _command_of(pid: str) -> str:
    """Return the command line of a process, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return ""


class LeftBehind:
    """The check, as a plugin of pytest; what fixtures of the session make belongs to the session."""

    def __init__(self) -> None:
        self._of_session = ProcessState()
        self._before: ProcessState | None = None
        self._may_abandon = self._has_abandoned = False

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope != "session":
            return (yield)
        before = state_now()
        try:
            return (yield)
        finally:
            after = state_now()
            self._of_session |= ProcessState(
                after.threads - before.threads,
                after.clients - before.clients,
                after.processes - before.processes,
                after.descriptors - before.descriptors,
            )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        if self._before is None:
            self._before, self._may_abandon = state_now(), False
        if item.get_closest_marker("abandons_clients"):
            self._may_abandon = self._has_abandoned = True
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
        """Fail the last test of a module if the module leaves something behind."""
        before = self._before
        is_last = nextitem is None or nextitem.path != item.path
        if is_last:
            self._before = None  # though the teardown may fail: the next module starts from its own state
        yield
        if before is None or not is_last:
            return
        getattr(item, "funcargs", {}).clear()  # pytest keeps what its fixtures gave until after this
        deadline_s = time.monotonic() + LEAVE_S
        while (left := self._left(before)) and time.monotonic() < deadline_s:
            gc.collect()  # a client whose request has failed is in a cycle with its error
            time.sleep(0.1)
        if left:
            pytest.fail(f"{item.path.name} has left behind, close it:\n" + "\n".join(left), pytrace=False)

    def _left(self, before: ProcessState) -> list[str]:
        known = before | self._of_session
        now = state_now()
        if self._may_abandon:
            now = replace(now, threads=known.threads, clients=known.clients)
        if self._has_abandoned:  # such clients connect again and again
            now = replace(now, descriptors=known.descriptors)
        return now.beside(known)
