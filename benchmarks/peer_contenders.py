"""The contenders of `peer_rates.py`: what runs both hops of a word count, and how far each has committed.

Invariant: all read and write with the same settings of librdkafka, with a process for each hop; acktree has
an acker besides. A peer runs in a separate Python, in which only it is installed.
"""

import json
import pickle
import sqlite3
import subprocess
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition

from acktree.console.devbroker.owner import die_with_owner
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.wire.errors import AcktreeError
from harness import HERE, Cluster, Deployment, new_name

PARTITIONS = 4
HOPS = ("split", "count")
PEERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "quix": ("quix_app.py", ("quixstreams==3.28.1", "confluent-kafka==2.12.2")),
    "bytewax": ("bytewax_flow.py", ("bytewax==0.21.1", "confluent-kafka==2.16.1")),
    "faststream": ("faststream_app.py", ("faststream[confluent]==0.7.8", "confluent-kafka==2.16.1")),
}
"""By contender: the script of its hops, and what its Python needs."""
STAGES = {"acktree": "split_line", "acktree-batch": "SplitBatches"}
"""By contender: its stage in `jobs.py`."""
CONTENDERS = ("plain", *STAGES, *PEERS)
CLIENTS: dict[str, Any] = {
    "commit_interval_s": 1.0,
    "consumer": {
        "auto.commit.interval.ms": 1_000,
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 5,
        "isolation.level": "read_committed",
        "queued.min.messages": 200_000,
    },
    "producer": {"linger.ms": 5, "queue.buffering.max.messages": 500_000},
}
"""What acktree's clients have as well."""
TOPOLOGY = """
name = "{name}"
[spouts.split]
topics = ["{name}.lines"]
emits = ["{name}.words"]
[bolts.count]
reads = ["{name}.words"]
"""
APPEND_TIMES = {"message.timestamp.type": "LogAppendTime"}
STOP_S = 30.0


class NotInstalled(AcktreeError):
    """pip could not install a peer."""


class PeerEnded(AcktreeError):
    """A process of a contender has ended while it was measured."""


class Hop(NamedTuple):
    """A process that is measured; ``check`` raises if it has ended."""

    pid: int
    check: Callable[[], None]


class Contender(NamedTuple):
    """Its processes while they run; ``committed`` returns for a hop the next offset of each partition."""

    lines: str
    words: str
    processes: Sequence[Hop]
    committed: Callable[[str], list[int]]
    is_transactional: bool

    def check(self) -> None:
        for process in self.processes:
            process.check()


def install(peer: str, folder: Path) -> Path:
    """Make a Python for a peer in a folder, and return its path. Raises NotInstalled."""
    home = folder / peer
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *PEERS[peer][1]], capture_output=True, text=True, preexec_fn=die_with_owner()
    )
    if done.returncode:
        raise NotInstalled((done.stderr.strip().splitlines() or ["pip said nothing"])[-1])
    return python


@contextmanager
def running(kafka: Cluster, kind: str, python: Path) -> Iterator[Contender]:
    """Run a contender on its own empty topics."""
    text, topics = TOPOLOGY.format(name=new_name()), {"lines": PARTITIONS, "words": PARTITIONS}
    with kafka.deployment(text, topics, APPEND_TIMES) as deployment, ExitStack() as stack:
        if kind in STAGES:
            processes = _acktree(deployment, STAGES[kind])
            committed = _group_offsets(deployment, "")
        else:
            script = PEERS[kind][0] if kind in PEERS else "plain_loop.py"
            processes = [stack.enter_context(_peer_hop(python, script, hop, deployment)) for hop in HOPS]
            committed = _group_offsets(deployment, "words.")
        if kind == "bytewax":
            committed = lambda hop: _stored_offsets(deployment.folder / hop)  # noqa: E731
        name = deployment.name
        yield Contender(f"{name}.lines", f"{name}.words", processes, committed, kind in STAGES)


def _acktree(deployment: Deployment, stage: str) -> list[Hop]:
    children = [
        deployment.start("acker", "run"),
        deployment.start("bolt", "run", "jobs:CountValues", "--bolt", "count"),
        deployment.start("spout", "run", f"jobs:{stage}", "--spout", "split"),
    ]
    return [Hop(child.pid, child.check_alive) for child in children]


@contextmanager
def _peer_hop(python: Path, script: str, hop: str, deployment: Deployment) -> Iterator[Hop]:
    folder, name = deployment.folder / hop, deployment.name
    folder.mkdir()
    what: dict[str, Any] = {
        "hop": hop,
        "bootstrap": deployment.bootstrap,
        "lines": f"{name}.lines",
        "words": f"{name}.words",
    }
    what |= {"clients": CLIENTS, "folder": str(folder)}
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), str(HERE / "peers" / script), json.dumps(what)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_owner(),
        )

    def check() -> None:
        if process.poll() is not None:
            said = "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])
            raise PeerEnded(f"{script} {hop} ended with code {process.returncode}:\n{said}")

    try:
        yield Hop(process.pid, check)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _group_offsets(deployment: Deployment, prefix: str) -> Callable[[str], list[int]]:
    """Return what reads the offsets that the group of a hop, TOPOLOGY.PREFIX + HOP, has committed."""
    consumers = {hop: deployment.consumer(prefix + hop) for hop in HOPS}

    def committed(hop: str) -> list[int]:
        topic = f"{deployment.name}.{'lines' if hop == 'split' else 'words'}"
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        found = consumers[hop].committed(places, timeout=BROKER_TIMEOUT_S)
        return [max(0, place.offset) for place in found]

    return committed


def _stored_offsets(store: Path) -> list[int]:
    """Return the offsets in Bytewax's recovery store, which has a pickle of each."""
    found = dict.fromkeys(range(PARTITIONS), 0)
    for file in store.glob("*.sqlite3"):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=1)) as database:
            rows = database.execute("select state_key, ser_change from snaps order by snap_epoch").fetchall()
        for key, change in rows:
            if change is not None:
                found[int(key.split("-", 1)[0])] = int(pickle.loads(change))
    return list(found.values())
