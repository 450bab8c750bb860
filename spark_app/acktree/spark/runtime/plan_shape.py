"""Decides whether a Spark plan is narrow: whether it keeps the rows of a record in the task that read it.

Invariant: only a plan made of operators known to be narrow, each with one input, counts as narrow; any other
plan, and any operator not known here, does not.
"""

import re
from typing import Any

from pyspark.sql import DataFrame

NARROW = frozenset(
    {"Project", "Filter", "Generate", "MapInArrow", "MapInPandas", "ArrowEvalPython", "BatchEvalPython"}
)
HIDING = frozenset({"Filter", "Generate", "MapInArrow", "MapInPandas"})
"""Those of them that drop or multiply rows."""
SCAN = "LogicalRDD"
STRAIGHT_RDDS = frozenset({"SQLExecutionRDD", "MapPartitionsRDD", "DataSourceRDD", "PythonRDD"})


def is_narrow(output: DataFrame, batch: DataFrame) -> bool:
    """Return whether all rows of a record stay in the task that read it: one scan, no exchange, no limit.

    The scan must be the batch's own. Rows that Spark holds, by ``localCheckpoint`` or ``createDataFrame``,
    are also a scan, but were read in another task, or never.
    """
    own, other = _scanned(batch), _scanned(output)
    return own is not None and other is not None and int(own.id()) == int(other.id())


def tasks_of(rows: DataFrame) -> int:
    """Return in how many tasks rows are read of which ``is_narrow`` is true."""
    return int(_scanned(rows).getNumPartitions())


def _scanned(rows: DataFrame) -> Any:
    """Return the RDD that narrow operators alone lead down to; None where there are others."""
    node: Any = rows._jdf.queryExecution().optimizedPlan()
    while node.nodeName() in NARROW:
        node = node.children().head()
    return node.rdd() if node.nodeName() == SCAN else None


def operators_before(batch: DataFrame) -> list[str]:
    """Return what drops or multiplies rows between ``foreachBatch``, which gives a scan, and the stage."""
    node: Any = batch._jdf.queryExecution().analyzed()
    found = []
    while not (below := node.children()).isEmpty():
        found.append(node.nodeName())
        node = below.head()
    return [name for name in found if name in HIDING]


def rdds_before(batch: DataFrame) -> list[str]:
    """Return the kinds of RDD that a batch given to ``foreachBatch`` is made of, the last one first."""
    lines = _lineage(batch).splitlines()
    return [line.lstrip(" |+-").partition("[")[0].rpartition(" ")[2] for line in lines]


def scans_before(batch: DataFrame) -> tuple[str, ...]:
    """Return the numbers, unique in an application, of the source's scans that a batch is made of."""
    return tuple(re.findall(r"\bDataSourceRDD\[(\d+)\]", _lineage(batch)))


def _lineage(batch: DataFrame) -> str:
    return str(batch._jdf.queryExecution().toRdd().toDebugString())


def is_straight(rdds: list[str]) -> bool:
    """Return whether one scan of the source comes as it is: nothing shuffled, united or kept as state."""
    return set(rdds) <= STRAIGHT_RDDS and rdds.count("DataSourceRDD") == 1
