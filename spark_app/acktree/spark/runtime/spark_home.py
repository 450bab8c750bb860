"""A home for Spark without its zip files of Python.

Spark puts the zip files of its home first on the path of every Python process. Out of a zip file Python keeps
no bytecode: each process would compile PySpark anew, some three CPU seconds of a start in all
(``python benchmarks/native.py home``).
Where PySpark was installed from PyPI, the same files stand beside the zip files, and are found without them.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

_PARTS = ("bin", "jars", "sbin")


@contextmanager
def plain_files() -> Iterator[None]:
    """Around the start of a JVM: give it this home, unless it has one or workers run another interpreter."""
    package = Path(pyspark.__file__).parent
    is_complete = all((package / part).is_dir() for part in _PARTS)
    if not is_complete or "SPARK_HOME" in os.environ or os.environ.get("PYSPARK_PYTHON") != sys.executable:
        yield
        return
    os.environ["SPARK_HOME"] = _home(package).name
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]  # another Spark that this process starts has a home of its own


@cache
def _home(package: Path) -> TemporaryDirectory[str]:
    """Return a folder of links to a PySpark; it goes when this process ends."""
    home = TemporaryDirectory(prefix="acktree-spark-home-")
    for part in _PARTS:
        (Path(home.name) / part).symlink_to(package / part)
    return home
