"""What the broker tests of the acker share."""

import pytest

from acker.cluster import Cluster


@pytest.fixture
def make(bootstrap, unique, tmp_path):
    """Return a function that publishes this test's topology and gives the verbs to use it."""
    made = []

    def start(**settings):
        made.append(Cluster(bootstrap, unique, tmp_path, **settings))
        return made[-1]

    yield start
    for cluster in made:
        cluster.close()
