"""Fixtures of the broker tests of the acker."""

import pytest
from hypothesis import Phase, settings

import hypothesis_profiles  # noqa: F401  the profiles, registered and loaded
from acker.cluster import AckerCluster
from simulated_kafka import run_in


@pytest.fixture
def make(kafka, unique, tmp_path, simulation):
    """Return a function that publishes this test's topology and gives the verbs to use it."""
    made = []

    def start(**settings):
        made.append(AckerCluster(kafka, unique, tmp_path, simulation, **settings))
        return made[-1]

    yield start
    for cluster in made:
        run_in(simulation, cluster.close)


# Mutants are killed by the first failing example: looking for a simpler one takes minutes. See `make mutate`.
settings.register_profile("mutate", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None)
