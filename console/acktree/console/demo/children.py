"""Runs processes of the demo and of benchmarks: started by command line, logged to files, ended by pid.

Invariant: none outlives the process that started it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from acktree.console.devbroker.owner import die_with_owner
from acktree.wire.errors import AcktreeError

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0


class ChildFailed(AcktreeError):
    """A process of the demo exited, or was not ready in time."""


class ChildProcess:
    """One `acktree …` process with its log file."""

    def __init__(
        self, name: str, arguments: list[str], folder: Path, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name, self.log = name, log
        self._command = [sys.executable, "-m", "acktree.console.main", *arguments]
        self._folder, self._environment = folder, {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._shown_to = 0

    def start(self) -> None:
        """Start the process; it appends to its log."""
        self._ready_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_owner(),
            )

    @property
    def pid(self) -> int:
        """The process id, once it is started."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def wait_ready(self, tick: Callable[[], None]) -> None:
        """Wait for the line that starts with "ready"; call ``tick`` while waiting.

        Raises:
            ChildFailed: it ended, or was not ready in START_TIMEOUT_S.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.exit_code is not None:
                raise ChildFailed(f"{self.name} ended with code {self.exit_code}:\n{self.tail()}")
            output = self.log.read_bytes()[self._ready_from :]
            if any(line.startswith(b"ready") for line in output.splitlines()):
                return
            tick()
            time.sleep(0.05)
        raise ChildFailed(f"{self.name} was not ready within {START_TIMEOUT_S:g} s:\n{self.tail()}")

    def check_alive(self) -> None:
        """Raise ChildFailed if the process has ended."""
        if self.exit_code is not None:
            raise ChildFailed(f"{self.name} ended with code {self.exit_code}:\n{self.tail()}")

    def new_lines(self) -> list[str]:
        """Return the whole lines that it has written since the last call."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(self._shown_to)
            written = log.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._shown_to += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

    def tail(self) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-15:])

    def kill(self) -> None:
        """Kill it with signal 9: it gets no chance to say anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it with SIGTERM, and if that is not enough by SIGKILL to all of its session."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
