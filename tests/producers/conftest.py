"""The tester for workers, one topology a test."""

from collections.abc import Iterator

import pytest

from producers.cluster import Cluster


@pytest.fixture
def cluster(bootstrap: str, unique: str) -> Iterator[Cluster]:
    made = Cluster(bootstrap, unique)
    yield made
    made.close()
