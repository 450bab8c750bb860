"""Makes a home for Spark without its zip files of Python.

Spark puts the zip files of its home first on the path of every Python process. Python keeps no bytecode for
modules in a zip file: each process would compile PySpark again, some three CPU seconds of a start in all
(``python benchmarks/native.py home``). If PySpark was installed from PyPI, the same files are beside the zip
files, and are found without them.

Invariant: one PySpark has one home, so that the JVM's class path is the same at each start, as an archive of
its classes needs it (``class_archive.py``). A process has a separate home only if none can be kept.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pyspark

from acktree.core.cache_folder import cache_folder

_PARTS = ("bin", "jars", "sbin")


@contextmanager
def plain_files() -> Iterator[None]:
    """Around the start of a JVM: give it this home, unless it has one or workers run another interpreter."""
    package = Path(pyspark.__file__).resolve().parent
    is_complete = all((package / part).is_dir() for part in _PARTS)
    if not is_complete or "SPARK_HOME" in os.environ or os.environ.get("PYSPARK_PYTHON") != sys.executable:
        yield
        return
    os.environ["SPARK_HOME"] = str(_home(package))
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]  # another Spark that this process starts has its own home


def _home(package: Path) -> Path:
    """Return a folder of links to a PySpark."""
    try:
        home = cache_folder() / f"spark-home-{hashlib.sha256(os.fsencode(package)).hexdigest()[:12]}"
        if not home.is_dir():
            whole = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
            _link(package, whole)
            try:
                whole.rename(home)
            except OSError:  # another process was faster
                shutil.rmtree(whole)
        return home
    except OSError:
        return Path(_own_home(package).name)


@cache
def _own_home(package: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes when this process ends."""
    home = tempfile.TemporaryDirectory(prefix="acktree-spark-home-")
    _link(package, Path(home.name))
    return home


def _link(package: Path, home: Path) -> None:
    for part in _PARTS:
        (home / part).symlink_to(package / part)
