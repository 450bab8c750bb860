"""Fetches the jars of the development broker once, with jgo into the local Maven repository.

The list is kept in a file; later starts read only that and never touch the network. A partly fetched jar is
fetched again. Only one process fetches at a time.
"""

import fcntl
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acktree.core.cache_folder import cache_folder
from acktree.core.errors import how_to_install
from acktree.wire.errors import AcktreeError

KAFKA_VERSION = "4.1.0"
# slf4j-simple prints Kafka's log to stderr; without a binding Kafka would die in silence.
COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")


class JarsUnavailable(AcktreeError):
    """Kafka's jars could not be downloaded."""


def broker_jars() -> list[Path]:
    """Return Kafka's jars, fetching those that are not there. Raises JarsUnavailable."""
    kept_list = _cache_folder() / f"kafka-{KAFKA_VERSION}.jars"
    with _locked(kept_list.with_suffix(".lock")):
        jars = _cached(kept_list)
        if jars is None:
            jars = _fetch()
            _store_list(kept_list, jars)
    return jars


def _cache_folder() -> Path:
    try:
        return cache_folder()
    except OSError as cause:
        raise JarsUnavailable(
            f"the folder {cause.filename} cannot be made ({cause.strerror}): set XDG_CACHE_HOME"
        ) from cause


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _cached(kept_list: Path) -> list[Path] | None:
    """Return the jars of an earlier start, None if one of them is gone or another set is wanted now."""
    if not kept_list.exists():
        return None
    wanted, *names = kept_list.read_text().splitlines()
    jars = [Path(name) for name in names]
    return jars if wanted == "+".join(COORDINATES) and all(jar.exists() for jar in jars) else None


def _store_list(kept_list: Path, jars: list[Path]) -> None:
    written = kept_list.with_suffix(".new")
    written.write_text("\n".join(["+".join(COORDINATES), *map(str, jars)]) + "\n")
    written.replace(kept_list)


def _fetch() -> list[Path]:
    try:
        import jgo
    except ModuleNotFoundError as cause:
        raise JarsUnavailable(f"fetching Kafka needs jgo: {how_to_install('broker')}") from cause
    try:
        return [_complete_file(artifact) for artifact in jgo.resolve("+".join(COORDINATES))]
    except Exception as cause:  # jgo lets RuntimeError, OSError and errors of its HTTP library through
        raise JarsUnavailable(f"Kafka {KAFKA_VERSION} could not be fetched: {cause}") from cause


def _complete_file(artifact: Any) -> Path:
    """Return the file of a jgo artifact, fetched again if an earlier fetch was cut off."""
    jar = Path(artifact.resolve())
    if not zipfile.is_zipfile(jar):
        jar.unlink()
        jar = Path(artifact.resolve())
    return jar
