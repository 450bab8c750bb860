"""Three real brokers that replicate, each of them a controller, too: any one can be killed."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import prerequisites
from acktree.console.devbroker import ports
from acktree.console.devbroker.broker_files import DEFAULTS, LOG_LEVEL, new_cluster_id
from acktree.console.devbroker.jars import JarsUnavailable, broker_jars
from acktree.console.devbroker.java import MissingJava, find_java
from acktree.console.devbroker.owner import die_with_owner
from deadlines import ANSWER_S, stretched

BROKERS = 3
START_TIMEOUT_S = stretched(120)
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# What is created has one replica unless the creator asks for more: a topology file has to.
REPLICATED = {
    "broker.session.timeout.ms": "6000",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
}


class ThreeBrokers:
    """A cluster of three; ``kill`` ends one as a crash would, ``start_again`` lets it come back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._addresses: dict[int, str] = {}
        self._command: list[str] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(self._addresses.values())

    def start(self, running: ExitStack) -> None:
        java, jars = str(find_java()), os.pathsep.join(map(str, broker_jars()))
        free = ports.free_ports(2 * BROKERS)
        clients, controllers = free[:BROKERS], free[BROKERS:]
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1))
        cluster = new_cluster_id()
        for node, port in enumerate(clients, 1):
            self._addresses[node] = f"127.0.0.1:{port}"
            home = self._folder / f"broker-{node}"
            home.mkdir()
            settings = DEFAULTS | REPLICATED | {
                "process.roles": "broker,controller",
                "node.id": str(node),
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[node - 1]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
                "log.dirs": str(home / "data"),
            }  # fmt: skip
            file = home / "server.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            self._command = [java, *SHORT_LIVED, LOG_LEVEL, "-Xmx512m", "-cp", jars]
            tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)]
            subprocess.run([*self._command, *tool], check=True, capture_output=True)
            self._spawn(node)
            running.callback(self.kill, node)
        self._await_all()

    def _spawn(self, node: int) -> None:
        home = self._folder / f"broker-{node}"
        with (home / "log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(home / "server.properties")],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_owner(),
            )

    def start_again(self, node: int) -> None:
        """Start a broker that was killed, with what it had; return once the cluster has three again."""
        self._spawn(node)
        self._await_all()

    def kill(self, node: int) -> None:
        """End a broker by SIGKILL; a second time does nothing."""
        process = self._processes[node]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def leader(self, topic: str) -> int:
        """Return the node that leads partition 0 of a topic."""
        about = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(topic, timeout=ANSWER_S)
        node: int = about.topics[topic].partitions[0].leader
        return node

    def _await_all(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline_s = time.monotonic() + START_TIMEOUT_S
        found = 0
        while found < BROKERS:
            logs = [(self._folder / f"broker-{node}" / "log").read_text()[-2000:] for node in self._processes]
            assert time.monotonic() < deadline_s, logs
            try:
                found = len(admin.list_topics(timeout=1).brokers)
            except KafkaException:
                time.sleep(0.1)


@contextmanager
def three_brokers(folder: Path) -> Iterator[ThreeBrokers]:
    """Run three brokers; where this machine cannot run one, skip the test, or fail it in CI."""
    with ExitStack() as running:
        cluster = ThreeBrokers(folder)
        try:
            cluster.start(running)
        except (MissingJava, JarsUnavailable) as reason:
            prerequisites.give_up(f"no Kafka to test with: {reason}")
        yield cluster
