"""Everything works with ACKTREE_NATIVE=off, where no private part of another library is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulated_kafka import REAL

HOUSE = Path(__file__).parents[1]
MODULES = ("tests/spark/test_stage.py", "tests/spark/test_reader.py", "tests/spark/test_failing_bolt.py")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sparks_tests_pass_without_the_private_parts_of_libraries(bootstrap: str):
    command = [sys.executable, "-m", "pytest", "-x", "-m", "not slow", "-p", "no:cacheprovider"]
    environment = {**os.environ, "ACKTREE_NATIVE": "off", "KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    for name in [name for name in environment if name == REAL or name.startswith("PYTEST_")]:
        del environment[name]
    ran = subprocess.run(
        [*command, *MODULES],
        cwd=HOUSE,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4_000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout.splitlines()[-1]
