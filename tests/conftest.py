"""What every test may ask for: one shared Kafka, a name of its own on it, or a Kafka to break.

A test without a broker is skipped on a laptop and fails where CI is set: a green run has talked to Kafka.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from acktree.console import ports
from acktree.console.broker import LocalBroker
from acktree.console.broker_files import DEFAULTS
from acktree.console.jars import KAFKA_VERSION, JarsUnavailable
from acktree.console.java import MissingJava

SERVE_TIMEOUT_S = 60
BROKER_FIXTURES = {"bootstrap", "own_broker"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if BROKER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.broker)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """The address of the Kafka that all tests share: KAFKA_BOOTSTRAP_SERVERS, Docker, or from its jars."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    with ExitStack() as running:
        yield _in_docker(running) or _started(LocalBroker(), running).bootstrap


@pytest.fixture
def unique() -> str:
    """A prefix that no other test uses, for the names of topics, groups and topologies."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def topology_name(unique: str) -> str:
    """The name of a topology that no other test uses."""
    return unique


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., LocalBroker]]:
    """Return a function that starts a Kafka for this test alone; it takes the arguments of LocalBroker."""
    with ExitStack() as running:

        def start(**arguments: Any) -> LocalBroker:
            folder = tmp_path / f"broker-{uuid.uuid4().hex[:6]}"
            return _started(LocalBroker(**{"data_dir": folder, **arguments}), running)

        yield start


def _started(broker: LocalBroker, running: ExitStack) -> LocalBroker:
    """Start a broker; where this machine cannot run one, skip the test, or fail it in CI."""
    try:
        broker.start()
    except (MissingJava, JarsUnavailable) as reason:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"no Kafka to test with: {reason}")
    running.callback(broker.stop)
    return broker


def _in_docker(running: ExitStack) -> str | None:
    """Start a Kafka in Docker; None where no Docker engine answers or it cannot have the image."""
    from docker import from_env
    from docker.errors import DockerException
    from testcontainers.core.container import DockerContainer

    (port,) = ports.free_ports(1)
    try:
        from_env(timeout=5).ping()
        container = DockerContainer(f"apache/kafka:{KAFKA_VERSION}").with_bind_ports(9092, port)
        address = f"{container.get_docker_client().host()}:{port}"
        for key, value in {**DEFAULTS, **_container_settings(address)}.items():
            container.with_env("KAFKA_" + key.upper().replace(".", "_"), value)
        running.enter_context(container)
    except (DockerException, OSError):
        return None
    _await_serving(address)
    return address


def _container_settings(address: str) -> dict[str, str]:
    return {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@localhost:9093",
    }


def _await_serving(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    deadline = time.monotonic() + SERVE_TIMEOUT_S
    while True:
        try:
            admin.list_topics(timeout=1)
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
