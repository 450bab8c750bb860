"""Handles the differences between the versions of Spark that acktree runs on, 4.0 to below 5.

Invariant: no other file checks the version. As of 4.2 Spark passes to a source where a batch starts, how much
it may hold, and whether to read only what is there (admission control). Before, it calls ``latestOffset()``
without arguments; ``runtime/begun_batch.py`` and ``runtime/available_now.py`` make up for that.
"""

from typing import TYPE_CHECKING

import pyspark

from acktree.core.errors import how_to_install
from acktree.wire.errors import AcktreeError

OLDEST = (4, 0)
FIRST_WITH_ADMISSION_CONTROL = (4, 2)


class UnsupportedSpark(AcktreeError):
    """The installed PySpark has no data sources in Python, or is newer than the versions supported."""


def version_of(text: str) -> tuple[int, int]:
    """Return the major and minor number of a version of PySpark.

    >>> version_of("4.1.4"), version_of("4.3.0.dev1")
    ((4, 1), (4, 3))
    """
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def check_version(text: str) -> None:
    """Check that a version of PySpark is one that acktree runs on. Raises UnsupportedSpark.

    >>> check_version("4.0.1")
    """
    if not OLDEST <= version_of(text) < (5, 0):
        raise UnsupportedSpark(
            f"acktree needs PySpark 4.0 or newer, below 5, and {text} is installed: {how_to_install('spark')}"
        )


check_version(pyspark.__version__)

HAS_ADMISSION_CONTROL = version_of(pyspark.__version__) >= FIRST_WITH_ADMISSION_CONTROL
"""Whether Spark says where a batch starts, limits it, and runs ``availableNow`` to its end."""

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """Never given."""

    class ReadAllAvailable(ReadLimit):
        """Never given."""

    class ReadMaxRows(ReadLimit):
        """Never given."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:
        """Never asked for."""


__all__ = [
    "HAS_ADMISSION_CONTROL",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "UnsupportedSpark",
    "check_version",
    "version_of",
]
