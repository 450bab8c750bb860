"""What a Spark plan does to the rows of one record: does it keep them in the task that read it?

Invariant: only a plan made of operators known to be narrow, each with one input, counts as narrow; any other,
and any operator not known here, does not.
"""

from typing import Any

from pyspark.sql import DataFrame

NARROW = frozenset(
    {"Project", "Filter", "Generate", "MapInArrow", "MapInPandas", "ArrowEvalPython", "BatchEvalPython"}
)
SCAN = "LogicalRDD"


def is_narrow(output: DataFrame) -> bool:
    """Tell whether all rows of a record stay in the task that read it: one scan, no exchange, no limit."""
    node: Any = output._jdf.queryExecution().optimizedPlan()
    while node.nodeName() in NARROW:
        node = node.children().head()
    return bool(node.nodeName() == SCAN)
