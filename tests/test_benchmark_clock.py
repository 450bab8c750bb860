"""The benchmarks' clock against processes whose parent keeps no account of them."""

import os
import signal
import subprocess
import sys
from multiprocessing.connection import wait
from queue import SimpleQueue

from clock import Spent, TreeClock
from deadlines import stretched

WAIT_S = stretched(120)
TWO_TICKS_S = 2 / os.sysconf("SC_CLK_TCK")  # /proc rounds user and system time down to ticks
BURN = """
import os, signal, time
while time.process_time() < {seconds}:
    pass
print(os.getpid(), flush=True)
signal.pause()
"""
FORGETFUL = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {child!r}])
sys.stdin.read()
"""


class Watched(TreeClock):
    """Records every sample, those of its own thread, too."""

    def __init__(self, root: int) -> None:
        super().__init__(root)
        self.looks: SimpleQueue[float] = SimpleQueue()

    def __call__(self) -> Spent:
        seen = super().__call__()
        self.looks.put(seen.cpu_s)
        return seen

    def next_look(self) -> float:
        """Return what a look saw that began after this call."""
        while not self.looks.empty():
            self.looks.get()
        self.looks.get(timeout=WAIT_S)  # it may have begun before
        return self.looks.get(timeout=WAIT_S)


def test_the_last_sample_of_a_process_is_kept_after_its_end():
    parent = subprocess.Popen(
        [sys.executable, "-c", FORGETFUL.format(child=BURN.format(seconds=0.6 + TWO_TICKS_S))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with Watched(parent.pid) as clock:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        of_both_s = clock.next_look()
        assert of_both_s >= 0.6
        signal.pidfd_send_signal(child, signal.SIGKILL)
        assert wait([child], WAIT_S)
        os.close(child)
        assert clock().cpu_s >= of_both_s
        parent.communicate()
        assert clock().cpu_s >= of_both_s
        parent.stdout.close()


def test_one_process_and_its_children_may_be_excluded():
    child = subprocess.Popen([sys.executable, "-c", BURN.format(seconds=0.5)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with TreeClock(os.getpid()) as everything, TreeClock(os.getpid(), child.pid) as rest:
        rest_s, all_s = rest().cpu_s, everything().cpu_s
    child.kill()
    child.wait()
    child.stdout.close()
    assert all_s - rest_s >= 0.4
