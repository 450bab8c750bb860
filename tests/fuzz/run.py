"""Fuzzes what comes from outside with atheris, guided by the coverage of the product.

    pip install atheris
    python tests/fuzz/run.py --seconds 3600

The time is shared out evenly over the targets. New inputs are kept in tests/fuzz/corpus; one that breaks a
target is printed in hexadecimal digits, and kept out; status 1.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

NAMES = (
    "records",
    "results",
    "header",
    "spout-metadata",
    "bolt-metadata",
    "claim",
    "topology",
    "registry",
    "report",
    "offsets",
    "page",
)
COMPILED = ["acktree.schemas.batch_codec", "acktree.acker", "acktree.producers.native"]
"""Compiled by numba, which cannot compile instrumented functions."""
LIMITS = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", "-print_final_stats=1"]


def fuzz_one(name: str, arguments: list[str]) -> None:
    """Run one target in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["acktree"], exclude=COMPILED):
        from fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name])
    atheris.Fuzz()


def fuzz(name: str, seconds: int) -> bool:
    """Run one target in a process of its own, keep what it has found; return whether nothing is broken."""
    from fuzz import corpus
    from fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory() as folder:
        inputs, broken = Path(folder, "inputs"), Path(folder, "broken")
        inputs.mkdir(), broken.mkdir()
        for number, data in enumerate(corpus.read(name)):
            (inputs / str(number)).write_bytes(data)
        command = [sys.executable, __file__, "--in-this-process", name, str(inputs), *LIMITS]
        command += [f"-max_total_time={seconds}", f"-artifact_prefix={broken}/"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        runs = re.findall(r"number_of_executed_units: *(\d+)", done.stderr)
        found = [path.read_bytes() for path in broken.iterdir()]
        print(
            f"{name:15} {runs[-1] if runs else '?':>9} runs in {seconds} s, {len(found)} broken", flush=True
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
    parser.add_argument("--seconds", type=int, default=3600, help="how long in all")
    parser.add_argument("--target", choices=NAMES, action="append", help="this target alone")
    names = parser.parse_args().target or NAMES
    seconds = max(1, parser.parse_args().seconds // len(names))
    good = [fuzz(name, seconds) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-this-process"]:
        fuzz_one(sys.argv[2], sys.argv[3:])
    sys.exit(main())
