"""What the comparisons with the real Kafka share."""

import pytest
from confluent_kafka.admin import AdminClient


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    """One client for all: one that a test drops may be collected in its own thread, and abort the process."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
