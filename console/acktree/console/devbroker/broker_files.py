"""Manages the folder of the development broker: settings, log, and Kafka's data, formatted once."""

import base64
import fcntl
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from acktree.console.devbroker.ports import LOOPBACK
from acktree.wire.errors import AcktreeError

LOG_TAIL_BYTES = 4_000
LOG_READ_BYTES, LOG_LINE_CHARS = 200_000, 300
"""Of the end of a log: stack frames and long lines are cut, they would push the cause out."""
# Kafka's log is for the moment it fails: warnings are enough.
LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"

# One node: nothing is replicated. A small machine: few internal partitions. Nobody waits for latecomers,
# nor long for the dead: ackers may ask for a session of 6 s, also with KIP-848.
# A broker that was killed is let in again when its old session is over; with Kafka's own 9 s that takes 12 s.
DEFAULTS = {
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.preallocate": "false",
    "offsets.topic.num.partitions": "8",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}


class FormatFailed(AcktreeError):
    """Kafka's storage tool rejected the folder or the settings; the message has its output."""


class FolderInUse(AcktreeError):
    """Another broker runs in the folder."""


class ReservedSetting(AcktreeError):
    """A broker setting that is derived from the port and the folder cannot be set."""


class BrokerFiles:
    """The folder of one broker. Formatting and writing settings again is harmless."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str], listeners: Mapping[str, str] | None = None
    ) -> None:
        """Make the folder. ``listeners``: name to security protocol, beside the PLAINTEXT one."""
        self._listeners = dict(listeners or {})
        reserved = settings.keys() & _own_settings(folder, 1, 2, {}).keys()
        if reserved:
            raise ReservedSetting(f"{min(reserved)} cannot be set: it follows from --port and --data-dir")
        self.folder = folder
        self._settings = {**DEFAULTS, **settings}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def settings_file(self) -> Path:
        """Kafka's server.properties."""
        return self.folder / "server.properties"

    @property
    def log_file(self) -> Path:
        """What the JVM prints."""
        return self.folder / "broker.log"

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the folder; the descriptor keeps it locked as long as any process has it open.

        Kafka has its own lock, but opens its metadata log before it checks that: the running broker would die
        of that. Raises FolderInUse.
        """
        with (self.folder / "broker.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as cause:
                raise FolderInUse(
                    f"another broker runs in the folder {self.folder}: stop it, or give another --data-dir"
                ) from cause
            yield lock.fileno()

    def write_settings(self, port: int, controller_port: int, more_ports: Mapping[str, int]) -> None:
        """Write server.properties; ``more_ports`` is by the name of a listener."""
        more = {name: (self._listeners[name], port) for name, port in more_ports.items()}
        settings = self._settings | _own_settings(self.folder, port, controller_port, more)
        lines = [f"{key}={_escaped(value)}\n" for key, value in settings.items()]
        self.settings_file.write_text("".join(lines), encoding="ascii")

    def format_once(self, java: list[str]) -> None:
        """Give an empty folder a cluster id. Raises FormatFailed.

        A formatting that was cut off is done again: Kafka's tool writes meta.properties last.
        """
        if self._identity_file.exists():
            return
        tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", new_cluster_id(), "-c"]
        command = [java[0], "-XX:TieredStopAtLevel=1", *java[1:], *tool, str(self.settings_file)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            output = (done.stdout + done.stderr).strip()[-LOG_TAIL_BYTES:]
            raise FormatFailed(f"Kafka cannot use the folder {self.folder}:\n{output}")

    def cluster_id(self) -> str:
        """Return the cluster id of the formatted folder."""
        found = re.search(r"^cluster\.id=(\S+)$", self._identity_file.read_text(), re.MULTILINE)
        assert found, f"{self._identity_file} has no cluster.id"
        return found[1]

    def log_tail(self) -> str:
        """Return the end of what the JVM printed, without stack frames."""
        if not self.log_file.exists():
            return ""
        lines = self.log_file.read_bytes()[-LOG_READ_BYTES:].decode(errors="replace").splitlines()
        kept = (line[:LOG_LINE_CHARS] for line in lines if not line.startswith("\t"))
        return "\n".join(kept)[-LOG_TAIL_BYTES:].strip()

    @property
    def _identity_file(self) -> Path:
        return self.folder / "data" / "meta.properties"


def new_cluster_id() -> str:
    """Return 22 characters of base64 without `-`: one at the start would be taken for an option."""
    return base64.b64encode(uuid.uuid4().bytes, altchars=b"__").decode().rstrip("=")


def _own_settings(
    folder: Path, port: int, controller_port: int, more: Mapping[str, tuple[str, int]]
) -> dict[str, str]:
    protocols = {"PLAINTEXT": "PLAINTEXT", **{name: protocol for name, (protocol, _) in more.items()}}
    ports = {"PLAINTEXT": port, **{name: port for name, (_, port) in more.items()}}
    served = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
    protocol_map = ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"{served},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": served,
        "listener.security.protocol.map": f"{protocol_map},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "log.dirs": str(folder / "data"),
    }


def _escaped(value: str) -> str:
    """Write a value as Java's Properties reads it: ASCII, everything else as \\uXXXX."""
    units = value.encode("utf-16-be")
    codes = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(code) if 32 <= code < 127 and code != 92 else f"\\u{code:04x}" for code in codes)
