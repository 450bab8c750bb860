"""Fuzzes what comes from outside with atheris, guided by the coverage of the product.

    pip install atheris
    python tests/fuzz/run.py --seconds 3600

The seconds are of processor time, shared out evenly over the targets. New inputs are kept in
tests/fuzz/corpus; one that breaks a target is printed in hexadecimal digits, and kept out; status 1.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

NAMES = (
    "records",
    "results",
    "header",
    "states",
    "bolt-metadata",
    "topology",
    "registry",
    "report",
    "offsets",
    "page",
)
COMPILED = [
    "acktree.wire.batch_codec",
    "acktree.acker",
    "acktree.producers.collecting.arithmetic.fold_loop",
    "acktree.spark.native",
]
"""Compiled by numba, which cannot compile instrumented functions."""
INPUT_S = 10.0
"""How much processor time one input may take; the limit of libFuzzer is of the wall clock."""
LIMITS = ["-timeout=600", "-rss_limit_mb=2048", "-max_len=4096", "-print_final_stats=1"]


def fuzz_one(name: str, cpu_s: int, arguments: list[str]) -> None:
    """Run one target in this process for so much processor time; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["acktree"], exclude=COMPILED):
        from fuzz.targets import TARGETS
    TARGETS[name](b"\1")  # compiles what is compiled at its first call
    atheris.Setup([sys.argv[0], *arguments], until(time.process_time() + cpu_s, TARGETS[name]))
    atheris.Fuzz()


def until(end_s: float, target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return the target, after which libFuzzer is asked to end once the process has had its time."""

    def run(data: bytes) -> None:
        began_s = time.process_time()
        target(data)
        now_s = time.process_time()
        assert now_s - began_s < INPUT_S, f"{now_s - began_s:.1f} s of processor time for one input"
        if now_s > end_s:
            os.kill(os.getpid(), signal.SIGUSR1)

    return run


def fuzz(name: str, cpu_s: int) -> bool:
    """Run one target in a process of its own, keep what it has found; return whether nothing is broken."""
    from fuzz import corpus
    from fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory() as folder:
        inputs, broken = Path(folder, "inputs"), Path(folder, "broken")
        inputs.mkdir(), broken.mkdir()
        for number, data in enumerate(corpus.read(name)):
            (inputs / str(number)).write_bytes(data)
        command = [sys.executable, __file__, "--in-this-process", name, str(cpu_s), str(inputs), *LIMITS]
        command += [f"-artifact_prefix={broken}/"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        runs = re.findall(r"number_of_executed_units: *(\d+)", done.stderr)
        found = [path.read_bytes() for path in broken.iterdir()]
        print(
            f"{name:15} {runs[-1] if runs else '?':>9} runs in {used_s:.0f} s, {len(found)} broken",
            flush=True,
        )
        for data in found:
            print(f"    {data.hex()}")
        if found or done.returncode:
            print(*done.stdout.splitlines()[-25:], *done.stderr.splitlines()[-12:], sep="\n    ", flush=True)
        grown = corpus.grown(
            TARGETS[name], corpus.read(name), [path.read_bytes() for path in inputs.iterdir()]
        )
        corpus.write(name, grown)
        return not found and not done.returncode


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600, help="processor time in all")
    parser.add_argument("--target", choices=NAMES, action="append", help="this target alone")
    names = parser.parse_args().target or NAMES
    seconds = max(1, parser.parse_args().seconds // len(names))
    good = [fuzz(name, seconds) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-this-process"]:
        fuzz_one(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    sys.exit(main())
