"""A bolt that fails everything for a while, with real processes, a real broker and a real Spark."""

import importlib.util
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "benchmarks" / "bad_deploy.py"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_bad_deploy_at_a_high_rate_makes_no_dead_letter_and_all_is_done_afterwards(
    bootstrap: str, unique: str
):
    spec = importlib.util.spec_from_file_location("bad_deploy", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    bad_deploy = sys.modules["bad_deploy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bad_deploy)
    with ExitStack() as stack:
        run = bad_deploy.BadDeploy(stack, bootstrap, unique, 1, bad_deploy.BREAKER)
        found = run.run(rate=2_000, bad_s=30, limit_s=200)
    assert found.openings >= 1
    assert found.dead_letters == 0
    assert found.done == found.sent > 50_000
