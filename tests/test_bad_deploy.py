"""A bolt that fails everything for a while, with real processes, a real broker and a real Spark."""

import pytest

import bad_deploy
from harness import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_bad_deploy_at_a_high_rate_makes_no_dead_letter_and_all_records_are_done(bootstrap: str):
    found = bad_deploy.measure(Cluster(bootstrap), 2_000, 30, 200, 1, bad_deploy.BREAKER)
    assert found.openings >= 1
    assert found.dead_letters == 0
    assert found.done == found.sent > 50_000
