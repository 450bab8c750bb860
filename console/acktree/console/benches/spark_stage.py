"""Spark tracked, Spark untracked and Spark's own Kafka connector: the same records and transforms, in turn.

Tracked has everything: anchors, inits, an acker in its own process, results, commits. Untracked is the same
topology with ackers = 0: no header, no init; a record is done when its batch is. The rival is Spark's Kafka
source and sink, as it is and with a Python function that does nothing. A run is one query from start to end.
CPU is that of the driver, its JVM, their Python workers and the acker; the broker is left out.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import venv
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import NewTopic

from acktree.console.demo.children import ChildProcess
from acktree.console.demo.run import wordcount_folder
from acktree.console.devbroker.owner import die_with_owner
from acktree.schemas.cache_folder import cache_folder
from acktree.schemas.client_settings import producer_settings
from acktree.schemas.clients import make_admin, make_producer
from acktree.schemas.errors import AcktreeError
from acktree.schemas.kafka_errors import clear_errors
from acktree.schemas.publish import apply_topology
from acktree.schemas.temporary_folder import temporary_folder
from acktree.schemas.topology import parse_topology

PARTITIONS = 2
LINE = "one record of a hundred bytes that is split into some twenty words so that the stage has a lot to do"
WARM_UP_ROUNDS = 2
"""Spark's JVM compiles what a query needs for two runs of half a minute."""
RIVAL_VERSION = "4.0.0"
RIVAL_PACKAGES = (f"pyspark=={RIVAL_VERSION}", "pyarrow>=18", "pandas<3")
COMPLAINT_LINES = 60
SHORT_DELETE_DELAY = {"log.segment.delete.delay.ms": "1000"}
"""Settings of a broker that frees what a run has filled before the next one is through."""
Transform = Callable[[Any], Any]

TOPOLOGY = """
name = "{name}"
ackers = {ackers}
message_timeout_s = 300
[spouts.in]
topics = ["{source}"]
emits = ["{name}.out"]
max_pending = {max_pending}
block = {block}
"""


class MeasuredRun(NamedTuple):
    """One run: its length and the processor time it took."""

    seconds: float
    cpu_s: float


class NoRival(AcktreeError):
    """Spark's own connector could not be run."""


CpuClock = Callable[[], float]
Measure = Callable[[str], MeasuredRun]
"""Runs the pipeline of that name once."""


def fill(bootstrap: str, records: int) -> str:
    """Make a source topic with so many records of 100 bytes; return its name."""
    topic = new_topic(bootstrap)
    send(bootstrap, topic, records)
    return topic


def new_topic(bootstrap: str) -> str:
    """Make a topic and return its name."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with clear_errors(bootstrap):
        admin = make_admin(bootstrap, {})  # kept: the answer never comes to a client that is gone
        admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result()
    return topic


def drop_topics(bootstrap: str, topics: list[str]) -> None:
    """Delete topics: runs alike do not pay for what those before have filled."""
    with clear_errors(bootstrap):
        admin = make_admin(bootstrap, {})
        for deleted in admin.delete_topics(topics).values():
            deleted.result()


def send(bootstrap: str, topic: str, records: int) -> None:
    """Write records of 100 bytes, in turn to all partitions."""
    producer = make_producer(producer_settings(bootstrap, {}))
    for number in range(records):
        while True:
            try:
                producer.produce(topic, LINE, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def compare(
    measures: dict[str, Measure], rounds: int, pipelines: Iterable[str]
) -> Iterator[tuple[str, dict[str, list[MeasuredRun]]]]:
    """Yield each pipeline's runs, all kinds in turn: ``rounds`` after WARM_UP_ROUNDS that do not count."""
    for pipeline in pipelines:
        runs: dict[str, list[MeasuredRun]] = {kind: [] for kind in measures}
        for number in range(rounds + WARM_UP_ROUNDS):
            for kind, measure in measures.items():
                run = measure(pipeline)
                if number >= WARM_UP_ROUNDS:
                    runs[kind].append(run)
        yield pipeline, runs


def table(pipeline: str, runs: dict[str, list[MeasuredRun]], records: int) -> Iterator[str]:
    """Yield a line per kind: medians, the spread of the rate, and the rate beside tracked."""
    rates = {kind: [records / run.seconds for run in of_kind] for kind, of_kind in runs.items()}
    tracked = statistics.median(rates["tracked"])
    for kind, of_kind in runs.items():
        rate = statistics.median(rates[kind])
        cpu = statistics.median(run.cpu_s for run in of_kind) / records * 1e6
        yield (
            f"{pipeline}, {kind}: {rate:,.0f} records/s "
            f"({min(rates[kind]):,.0f} to {max(rates[kind]):,.0f}), "
            f"{cpu:.1f} CPU s a million; tracked / {kind} {tracked / rate:.2f}"
        )


class OwnSpark:
    """Our source and sink in one Spark session, with or without tracking."""

    def __init__(self, bootstrap: str, source: str, records: int, processes: CpuClock) -> None:
        from acktree.spark import app

        sys.path.insert(0, str(wordcount_folder()))
        self._bootstrap, self._source, self._max_pending, self._cpu = bootstrap, source, records, processes
        self._transforms: dict[str, Transform] = {
            "pass-through": _same,
            "line-split": app.load_function("split_lines:words"),
        }
        self._spark = app.make_session("acktree bench")

    def tracked(self, pipeline: str) -> MeasuredRun:
        return self._run(pipeline, ackers=1)

    def untracked(self, pipeline: str) -> MeasuredRun:
        return self._run(pipeline, ackers=0)

    def tracked_by_block(self, block: int) -> Measure:
        """Return what measures with one root for so many records that follow each other."""
        return lambda pipeline: self._run(pipeline, ackers=1, block=block)

    def _run(self, pipeline: str, ackers: int, block: int = 1) -> MeasuredRun:
        with self.topology(ackers, block) as (name, folder):
            before_s, began_s = self._cpu(), time.perf_counter()
            self.start(pipeline, name, folder, "available-now").awaitTermination()
            return MeasuredRun(time.perf_counter() - began_s, self._cpu() - before_s)

    def start(self, pipeline: str, name: str, folder: Path, trigger: str) -> Any:
        """Start the query of a topology that ``topology`` made."""
        from acktree.spark import app

        options = {"kafka.bootstrap.servers": self._bootstrap, "topology": name, "spout": "in"}
        return app.start(self._spark, self._transforms[pipeline], options, folder / "checkpoint", trigger)

    @contextmanager
    def topology(self, ackers: int, block: int = 1) -> Iterator[tuple[str, Path]]:
        """Publish a topology and run its acker; yield its name and a folder."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        max_pending, source = self._max_pending, self._source
        text = TOPOLOGY.format(name=name, ackers=ackers, source=source, max_pending=max_pending, block=block)
        plan = apply_topology(self._bootstrap, parse_topology(text), {})
        with ExitStack() as running:
            running.callback(drop_topics, self._bootstrap, [topic for topic, *_ in plan.create])
            folder = running.enter_context(temporary_folder("bench"))
            if ackers:
                command = ["acker", "run", "--topology", name, "-b", self._bootstrap]
                acker = ChildProcess("acker", command, folder, folder / "log", {})
                running.callback(acker.stop)
                acker.start()
                acker.wait_ready(lambda: None)
            yield name, folder

    def measure_small(self, records: int, triggers: int) -> list[float]:
        """Return the milliseconds from a trigger with so many records to its end, one by one."""
        with self.topology(ackers=1) as (name, folder):
            query = self.start("pass-through", name, folder, "")
            took_ms: list[float] = []
            seen: set[int] = set()
            while len(took_ms) < triggers:
                send(self._bootstrap, self._source, records)
                number = len(seen)
                while len(seen) == number:
                    time.sleep(0.01)
                    for progress in query.recentProgress:
                        if progress["numInputRows"] and progress["batchId"] not in seen:
                            seen.add(progress["batchId"])
                            took_ms.append(progress["durationMs"]["triggerExecution"])
            query.stop()
            return took_ms


class Rival:
    """Spark's own connector, in a process of another Python; made where it is not there yet."""

    def __init__(self, bootstrap: str, source: str, processes: CpuClock) -> None:
        self._bootstrap, self._source, self._cpu = bootstrap, source, processes
        command = [str(_rival_python()), _rival_script()]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
        environment.pop("PYTHONPATH", None)
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=environment,
            preexec_fn=die_with_owner(),
        )
        self._answer()

    def plain(self, pipeline: str) -> MeasuredRun:
        return self._run(pipeline, python=False)

    def with_python(self, pipeline: str) -> MeasuredRun:
        return self._run(pipeline, python=True)

    def _run(self, pipeline: str, python: bool) -> MeasuredRun:
        sink = new_topic(self._bootstrap)
        request: dict[str, Any] = {"bootstrap": self._bootstrap, "source": self._source, "sink": sink}
        assert self._process.stdin is not None
        with temporary_folder("rival") as checkpoint:
            request |= {"kind": pipeline, "python": python, "checkpoint": str(checkpoint)}
            before_s = self._cpu()
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            run = MeasuredRun(self._answer()["seconds"], self._cpu() - before_s)
        drop_topics(self._bootstrap, [sink])
        return run

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        code = self._process.wait()
        self._complaints.seek(0)
        last = "".join(self._complaints.readlines()[-COMPLAINT_LINES:])
        raise NoRival(f"Spark {RIVAL_VERSION} ended with code {code}; are its jars there? It said:\n{last}")

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _rival_script() -> str:
    found = find_spec("acktree.console.benches.rival")
    assert found is not None
    assert found.origin is not None
    return found.origin


def _rival_python() -> Path:
    folder = cache_folder() / f"spark-{RIVAL_VERSION}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *RIVAL_PACKAGES], check=True)
        (folder / "complete").touch()
    return python


def _same(rows: Any) -> Any:
    return rows
