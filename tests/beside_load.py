"""Runs a command on a machine that is made slower: busy loops run beside it.

    python tests/beside_load.py 4 make test

starts as many loops as make a fixed piece of work take four times as long as on a quiet machine of normal
speed.
The machine's pace is measured again every minute; the figures are printed at the end.
"""

import subprocess
import sys
import threading

from fixed_work import slowness

MAX_LOOPS = 64
INTERVAL_S = 60.0


def main() -> int:
    """Run the command; return its exit code."""
    times, command = float(sys.argv[1]), sys.argv[2:]
    before = slowness()
    loops: list[subprocess.Popen[bytes]] = []
    try:
        while (now := slowness()) < times and len(loops) < MAX_LOOPS:
            loops.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        print(f"{len(loops)} busy loops: a piece of work takes {now:.1f}, before {before:.1f}", flush=True)
        measured, ended = [now], threading.Event()

        def measure() -> None:
            while not ended.wait(INTERVAL_S):
                measured.append(slowness())

        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        status = subprocess.run(command, check=False).returncode
        ended.set()
        least, *_, most = figures = sorted([*measured, now])
        median = figures[len(figures) // 2]
        print(f"exit code {status}; a piece of work took {least:.1f} to {most:.1f}, median {median:.1f}")
        return status
    finally:
        for loop in loops:
            loop.kill()


if __name__ == "__main__":
    sys.exit(main())
