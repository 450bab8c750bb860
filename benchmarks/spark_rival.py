"""Spark's own connector, for `spark_rates.py`: a process of another Python, made if need be."""

import json
import os
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

from acktree.console.devbroker.owner import die_with_owner
from acktree.core.cache_folder import cache_folder
from acktree.core.temporary_folder import temporary_folder
from acktree.wire.errors import AcktreeError
from clock import Spent, TreeClock
from harness import HERE, Cluster, new_name

VERSION = "4.0.0"
PACKAGES = (f"pyspark=={VERSION}", "pyarrow>=18", "pandas<3")
COMPLAINT_LINES = 60


class NoRival(AcktreeError):
    """Spark's own connector could not be run."""


class Rival:
    """The process; it runs one query for each request."""

    def __init__(self, kafka: Cluster, source: str, clock: TreeClock) -> None:
        self._kafka, self._source, self._clock = kafka, source, clock
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
        environment.pop("PYTHONPATH", None)
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            [str(_python()), str(HERE / "rival.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=environment,
            preexec_fn=die_with_owner(),
        )
        self._answer()

    def plain(self, pipeline: str) -> Spent:
        return self._run(pipeline, python=False)

    def with_python(self, pipeline: str) -> Spent:
        return self._run(pipeline, python=True)

    def _run(self, pipeline: str, python: bool) -> Spent:
        name = new_name()
        self._kafka.create_topic(f"{name}.out", 2)
        request: dict[str, Any] = {"bootstrap": self._kafka.bootstrap, "source": self._source}
        assert self._process.stdin is not None
        with temporary_folder("rival") as checkpoint:
            request |= {
                "sink": f"{name}.out",
                "kind": pipeline,
                "python": python,
                "checkpoint": str(checkpoint),
            }
            begin = self._clock()
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            wall_s = self._answer()["seconds"]
            spent = self._clock().since(begin)
        self._kafka.delete_topics(name)
        return Spent(wall_s, spent.cpu_s)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        code = self._process.wait()
        self._complaints.seek(0)
        last = "".join(self._complaints.readlines()[-COMPLAINT_LINES:])
        raise NoRival(f"Spark {VERSION} ended with code {code}; are its jars there? It said:\n{last}")

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _python() -> Path:
    folder = cache_folder() / f"spark-{VERSION}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (folder / "complete").touch()
    return python
