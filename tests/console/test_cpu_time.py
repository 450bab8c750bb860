"""The bench's clock against processes whose parent keeps no account of them."""

import os
import subprocess
import sys
import time

from acktree.console.benches.cpu_time import LOOK_S, CpuClock

BURN = """
import time
while time.process_time() < {seconds}:
    pass
print(flush=True)
time.sleep({idle_s})
"""
FORGETFUL = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {child!r}])
sys.stdin.read()
"""


def test_what_a_process_used_is_remembered_after_its_end():
    child = BURN.format(seconds=0.6, idle_s=3 * LOOK_S)
    with CpuClock(os.getpid()) as clock:
        before_s = clock()
        parent = subprocess.Popen(
            [sys.executable, "-c", FORGETFUL.format(child=child)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert parent.stdout is not None
        parent.stdout.readline()
        of_both_s = clock() - before_s
        deadline_s = time.monotonic() + 30
        while children_of(parent.pid):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert clock() - before_s >= of_both_s >= 0.6
        parent.communicate()
        assert clock() - before_s >= of_both_s


def test_one_process_and_its_children_may_be_left_out():
    child = subprocess.Popen(
        [sys.executable, "-c", BURN.format(seconds=0.5, idle_s=60)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    with CpuClock(os.getpid()) as everything, CpuClock(os.getpid(), child.pid) as rest:
        all_s, rest_s = everything(), rest()
    child.kill()
    child.wait()
    assert all_s - rest_s >= 0.4


def children_of(pid: int) -> list[str]:
    found = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False
    )
    return found.stdout.split()
