"""Runs pytest, and accounts for the CPU time of all processes of the run: workers, brokers, Sparks.

    python tests/run.py --cpu-budget 750 ARGUMENTS OF PYTEST

Invariant: the sum has every process of the run. Where a parent ends first, its children become those of this
process (a subreaper, as Linux calls it), which waits for them. Processes that outlive the tests are named and
killed, and fail a run with ``--left-behind``. CPU seconds can be compared beside other load, wall time
cannot: so the budget is in CPU seconds, and a run over it fails where CI is set. One machine needs twice the
CPU seconds of another: so a fixed piece of work is timed all through the run, and the budget is that of a
machine which does it in WORK_S. How long it takes by the clock before the run stretches the deadlines of the
tests (``tests/deadlines.py``).
"""

import argparse
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from deadlines import SLOWNESS, stretched
from fixed_work import WORK_S, slowness, work

PR_SET_CHILD_SUBREAPER = 36
LEAVE_S = 20.0
"""How long processes may take to end after the last test."""
KILLED = 128
WORK_INTERVAL_S = 5.0
HANGS_S = 1200.0
"""A test that takes longer hangs inside a client library, where no timeout of pytest reaches it."""


def main() -> int:
    """Run the command; return pytest's status, or 1 if the run left processes behind or is over budget."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--cpu-budget", type=int, metavar="S", help="CPU seconds that the run may take")
    arguments, of_pytest = parser.parse_known_args()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this system has no subreapers")
    os.environ[SLOWNESS] = f"{slowness():.2f}"
    hangs = f"faulthandler_timeout={stretched(HANGS_S):.0f}"
    began_s = time.monotonic()
    timed = TimedWork()
    timed.start()
    status = _run([sys.executable, "-m", "pytest", "-o", hangs, *of_pytest])
    cpu_factor = timed.mean_s / WORK_S
    left = _await_all()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = usage.ru_utime + usage.ru_stime
    counted_s, budget_s = cpu_s / cpu_factor, arguments.cpu_budget
    allowed = f" of {budget_s} allowed" if budget_s else ""
    print(f"{cpu_s:.0f} CPU seconds ({usage.ru_stime:.0f} of the system), {time.monotonic() - began_s:.0f} s")
    print(f"{counted_s:.0f}{allowed} on the machine of the budget, {cpu_factor:.2f} times as fast as this")
    print(f"work took {os.environ[SLOWNESS]} times as long as there at the start, which stretched deadlines")
    for process in left:
        print(f"left running by a test, and killed: {process}")
    if left and "--left-behind" in of_pytest:
        status = status or 1
    if budget_s and counted_s > budget_s and os.environ.get("CI"):
        print("over budget: make tests cheaper, or raise CPU_BUDGET_S in the Makefile and say why")
        status = status or 1
    return status


class TimedWork(threading.Thread):
    """Does the same piece of work again and again, to learn how slow this machine is during the run."""

    def __init__(self) -> None:
        super().__init__(name="work", daemon=True)
        self.took_s: list[float] = []

    def run(self) -> None:
        while True:
            began_s = time.thread_time()
            work()
            self.took_s.append(time.thread_time() - began_s)
            time.sleep(WORK_INTERVAL_S)

    @property
    def mean_s(self) -> float:
        """Mean CPU seconds of the work so far."""
        return sum(self.took_s) / len(self.took_s) if self.took_s else WORK_S


def _run(command: list[str]) -> int:
    """Run a command and wait for it, and meanwhile for every process that has become this one's child."""
    child = subprocess.Popen(command)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except KeyboardInterrupt:
            continue  # pytest has it as well, and ends
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
            child.returncode = code
            return code if code >= 0 else KILLED - code


def _await_all() -> list[str]:
    """Wait for what still runs; kill it after LEAVE_S, and return its command lines."""
    deadline_s = time.monotonic() + LEAVE_S
    left: dict[int, str] = {}
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return list(left.values())
        if pid == 0:
            if time.monotonic() > deadline_s:
                for each in _children():
                    left.setdefault(each, _command_of(each))
                    os.kill(each, signal.SIGKILL)  # no child is gone before it is waited for
            time.sleep(0.05)


def _children() -> list[int]:
    """Return the children of this process that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = path.read_text().partition(" (")
        except OSError:
            continue  # it has ended, and was not this one's child
        state, parent = rest.rpartition(") ")[2].split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found.append(int(pid))
    return found


def _command_of(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return f"{pid} {command.decode(errors='replace')[:200]}"


if __name__ == "__main__":
    sys.exit(main())
