"""Keeps an archive of the classes that Spark loads at its start: the JVM maps it instead of reading its jars.

It saves a quarter of the CPU seconds until the first record (``python benchmarks/spark_rates.py --start``).
The JVM itself checks that an archive fits it and the jars, and starts without one that does not (JEP 350,
dynamic archives).

Invariant: an archive appears under its name only when it is whole; nothing needs it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark

from acktree.core.cache_folder import cache_folder
from acktree.wire.errors import AcktreeError

_QUIET = " -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
MAKE_TIMEOUT_S = 300.0


class NoArchive(AcktreeError):
    """The archive could not be created; Spark starts without it."""


def archive_path() -> Path:
    """Return the place of the archive for this PySpark and this Java. Raises OSError."""
    java = os.environ.get("JAVA_HOME")
    found = str(Path(java, "bin", "java")) if java else shutil.which("java") or "java"
    parts = (pyspark.__file__, pyspark.__version__, os.path.realpath(found), os.environ.get("SPARK_HOME", ""))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return cache_folder() / f"spark-classes-{digest}.jsa"


def options_to_use() -> str:
    """Return the JVM's options to start from the archive, "" if there is none."""
    with suppress(OSError):
        path = archive_path()
        if path.is_file() and " " not in str(path):  # Spark splits the options at blanks
            return f" -XX:SharedArchiveFile={path}{_QUIET}"
    return ""


def options_to_make(path: Path) -> str:
    """Return the JVM's options to write an archive when it ends."""
    return f" -XX:ArchiveClassesAtExit={path}{_QUIET}"


def make_archive() -> Path:
    """Run a small query in a separate process, and keep the classes that it loaded; about half a minute.

    Raises:
        NoArchive: the JVM wrote none, or could not be given the name of one.
        OSError: the cache folder cannot be written.
    """
    path = archive_path()
    if " " in str(path):
        raise NoArchive(
            f"the path {path} contains a space, where Spark splits JVM options: set XDG_CACHE_HOME to a "
            "folder without one"
        )
    with tempfile.TemporaryDirectory(prefix=f"{path.name}-", dir=path.parent) as folder:
        new = Path(folder, path.name)
        command = [sys.executable, "-m", "acktree.spark.class_archive_query", str(new)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MAKE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NoArchive(
                f"the JVM did not write an archive of its classes in {MAKE_TIMEOUT_S:g} s"
            ) from error
        if done.returncode or not new.is_file():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise NoArchive(f"the JVM did not write an archive of its classes: {last}")
        new.replace(path)
    return path
