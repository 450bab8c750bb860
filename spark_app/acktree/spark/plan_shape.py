"""What a Spark plan does to the rows of one record: does it keep them in the task that read it?

Invariant: only a plan made of operators known to be narrow, over one scan, counts as narrow; any other, and
any operator not known here, does not.
"""

from typing import Any

from pyspark.sql import DataFrame

NARROW = frozenset(
    {
        "Project",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "ArrowEvalPython",
        "BatchEvalPython",
        "LogicalRDD",
    }
)


def is_narrow(output: DataFrame) -> bool:
    """Tell whether all rows of a record stay in the task that read it: one scan, no exchange, no limit."""
    scans, waiting = 0, [output._jdf.queryExecution().optimizedPlan()]
    while waiting:
        node: Any = waiting.pop()
        if node.nodeName() not in NARROW:
            return False
        children = node.children()
        scans += children.size() == 0
        waiting += [children.apply(index) for index in range(children.size())]
    return scans == 1
