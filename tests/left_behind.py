"""Names what the tests of a module leave behind: threads, Kafka clients, processes, descriptors.

A client that nobody closed logs into a later test and counts in its figures, and each time it looks like
another defect. So a module ends as it began, except for what fixtures of the session hold.
"""

import gc
import os
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CLIENT_THREAD = "rdk:main"
"""The name of the thread that librdkafka starts for each client."""
DESCRIPTORS = 20
"""How many more descriptors a module may end with: modules that it imports keep some."""
PER_PROCESS = {"acktree-writer"}
"""Threads that a process starts once, and keeps."""
LEAVE_S = 15.0
"""How long what was closed may take to end."""


@dataclass(frozen=True)
class ProcessState:
    """What a process holds; a Kafka client stands for itself by its main thread."""

    threads: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    processes: frozenset[str] = frozenset()
    descriptors: frozenset[str] = field(default_factory=frozenset)

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


def held_now() -> ProcessState:
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

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope != "session":
            return (yield)
        before = held_now()
        try:
            return (yield)
        finally:
            after = held_now()
            self._of_session |= ProcessState(
                after.threads - before.threads,
                after.clients - before.clients,
                after.processes - before.processes,
                after.descriptors - before.descriptors,
            )

    @pytest.fixture(scope="module", autouse=True)
    def nothing_is_left_behind(self) -> Generator[None]:
        """Fail where the tests of a module leave something behind."""
        before = held_now()
        yield
        if not self._left(before):
            return
        deadline_s = time.monotonic() + LEAVE_S
        while (left := self._left(before)) and time.monotonic() < deadline_s:
            gc.collect()  # a client whose request has failed is in a cycle with its error
            time.sleep(0.1)
        if left:
            pytest.fail("these tests left behind, close it:\n" + "\n".join(left), pytrace=False)

    def _left(self, before: ProcessState) -> list[str]:
        return held_now().beside(before | self._of_session)
