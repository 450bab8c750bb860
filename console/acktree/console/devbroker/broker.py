"""Runs a real single-node Kafka on this machine, for development and tests.

Broker and controller in one JVM (KRaft), bound to the loopback interface. The JVM runs in a separate session,
so that Ctrl-C reaches this process first, and dies with this process even if it is killed. Not for
production: one node, no security.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from acktree.console.devbroker import ports
from acktree.console.devbroker.broker_files import LOG_LEVEL, BrokerFiles
from acktree.console.devbroker.jars import broker_jars
from acktree.console.devbroker.java import find_java
from acktree.console.devbroker.owner import die_with_owner
from acktree.console.devbroker.ports import LOOPBACK, PortUnavailable
from acktree.core.temporary_folder import temporary_folder
from acktree.wire.errors import AcktreeError

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
POLL_S = 0.05
PORT_TRIES = 3


class BrokerDied(AcktreeError):
    """The JVM exited, or was not ready in time; the message has the end of its log."""


class AlreadyRunning(AcktreeError):
    """start() was called on a broker that is already running."""


class LocalBroker:
    """A single-node Kafka; use it in a `with`, or call start() and stop().

    port: 0 takes a free one, which later starts of this object keep. data_dir: kept, and used again by the
    next start (same records, same cluster id); None is a temporary folder that stop() removes. settings:
    Kafka's broker settings, over the defaults. listeners: more listeners, name to security protocol, each on
    a free port; ``settings`` has the settings that a protocol needs. The plain one stays.

    Call start() from a thread that outlives the broker: Linux ends the JVM with the thread that started it.
    """

    def __init__(
        self,
        port: int = 0,
        data_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        self._port = port
        self._listeners = dict(listeners or {})
        self._listener_ports: dict[str, int] = {}
        self._data_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._settings = dict(settings or {})
        self._files: BrokerFiles | None = None
        self._temporary = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, `127.0.0.1:port`."""
        assert self._port, "a broker with port 0 has an address once it is started"
        return f"{LOOPBACK}:{self._port}"

    def address(self, listener: str) -> str:
        """The address of one of ``listeners``, `127.0.0.1:port`."""
        return f"{LOOPBACK}:{self._listener_ports[listener]}"

    @property
    def pid(self) -> int:
        """The process id of the running JVM."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> Self:
        """Start Kafka and return when it answers.

        Raises:
            MissingJava, JarsUnavailable: there is nothing to run.
            PortUnavailable, FormatFailed, FolderInUse: the port or the folder cannot be used.
            BrokerDied: Kafka ended, or did not answer within START_TIMEOUT_S.
        """
        if self._process is not None:
            raise AlreadyRunning(f"the broker at {self.bootstrap} is already running: stop it first")
        java, jars = find_java(), broker_jars()
        if self._files is None:
            folder = self._data_dir or self._temporary.enter_context(temporary_folder("broker"))
            self._files = BrokerFiles(folder, self._settings, self._listeners)
        try:
            command = [str(java), LOG_LEVEL, *_heap(), "-cp", os.pathsep.join(map(str, jars))]
            with self._files.locked() as lock:  # the JVM inherits it and keeps it until it ends
                self._boot(self._files, command, lock)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End Kafka: SIGTERM, after STOP_TIMEOUT_S SIGKILL. A stopped broker stays stopped."""
        try:
            self._end(signal.SIGTERM)
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        finally:
            if self._data_dir is None:
                self._temporary.close()
                self._files = None

    def kill(self) -> None:
        """End Kafka as a crash would (SIGKILL). The data stays, start() finds it again."""
        self._end(signal.SIGKILL)

    def wait(self) -> None:
        """Return never while Kafka runs. Raises BrokerDied when it ends by itself."""
        assert self._process is not None, "the broker is not running"
        assert self._files is not None, "a running broker has files"
        code = self._process.wait()
        raise BrokerDied(f"Kafka ended with code {code}; the end of its log:\n{self._files.log_tail()}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _boot(self, files: BrokerFiles, java: list[str], lock: int) -> None:
        for tries_left in reversed(range(PORT_TRIES)):
            port, controller_port = self._choose_ports()
            files.write_settings(port, controller_port, self._listener_ports)
            files.format_once(java)
            self._process = _spawn([*java, "kafka.Kafka", str(files.settings_file)], files.log_file, lock)
            try:
                self._await_serving(files, port)
            except BrokerDied as death:
                self._end(signal.SIGKILL)
                if not (tries_left and "Address already in use" in str(death)):
                    raise
            else:
                self._port = port
                return

    def _choose_ports(self) -> tuple[int, int]:
        """Return a port for clients and one for the controller; somebody may still be faster than Kafka."""
        if self._port and (refusal := ports.refusal(self._port)):
            raise PortUnavailable(
                f"port {self._port} cannot be used ({refusal}): choose another, or 0 for a free one"
            )
        free = [port for port in ports.free_ports(3 + len(self._listeners)) if port != self._port]
        self._listener_ports = self._listener_ports or dict(zip(self._listeners, free[2:], strict=False))
        return self._port or free[0], free[1]

    def _await_serving(self, files: BrokerFiles, port: int) -> None:
        assert self._process is not None
        cluster_id = files.cluster_id()
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self.wait()
            if ports.listens(port) and _answers(f"{LOOPBACK}:{port}", cluster_id):
                return
            time.sleep(POLL_S)
        raise BrokerDied(
            f"Kafka did not serve within {START_TIMEOUT_S} s; the end of its log:\n{files.log_tail()}"
        )

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _heap() -> list[str]:
    return (os.environ.get("KAFKA_HEAP_OPTS") or "-Xmx1g -Xms256m").split()


def _answers(bootstrap: str, cluster_id: str) -> bool:
    """Return whether our cluster answers there, and not a stranger's that took the port."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "log.connection.close": False})
    try:
        cluster = admin.list_topics(timeout=1)
    except KafkaException:
        return False
    return cluster.cluster_id == cluster_id and bool(cluster.brokers)


def _spawn(command: list[str], log_file: Path, lock: int) -> subprocess.Popen[bytes]:
    with log_file.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock,),
            preexec_fn=die_with_owner(),
        )
