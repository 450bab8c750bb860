"""Finds the Java to run the development broker and Spark with.

JAVA_HOME wins if it is set, and a wrong JAVA_HOME is an error, not a reason to look elsewhere. Without it,
`java` from PATH.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from acktree.wire.errors import AcktreeError

OLDEST_JAVA = 17
ANSWER_TIMEOUT_S = 30


class MissingJava(AcktreeError):
    """No recent enough Java was found; the message says how to provide one."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"the development broker and Spark need Java {OLDEST_JAVA} or newer, but {found}: "
            f"install one, or set JAVA_HOME to the folder that holds its bin/java"
        )


def find_java() -> Path:
    """Return the path of a `java` that is new enough. Raises MissingJava."""
    java = _located()
    version = _version(java)
    if version < OLDEST_JAVA:
        raise MissingJava(f"{java} is Java {version}")
    return java


def _located() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise MissingJava(f"JAVA_HOME={home} has no bin/java")
        return java
    on_path = shutil.which("java")
    if on_path is None:
        raise MissingJava("there is no java on PATH and JAVA_HOME is not set")
    return Path(on_path)


def _version(java: Path) -> int:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise MissingJava(f"{java} does not run") from cause
    version = major_version(answer.stderr)
    if version is None:
        raise MissingJava(f"{java} does not print its version")
    return version


def major_version(text: str) -> int | None:
    """Return the major version in what `java -version` prints.

    >>> major_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> major_version('java version "1.8.0_452"')
    8
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None
