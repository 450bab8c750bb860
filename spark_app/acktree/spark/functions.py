"""Column functions for transforms that combine several records: they keep the trees of all of them.

Invariant: no anchor is dropped; a row belongs to the tree of every record it was made from.
"""

from pyspark.sql import Column
from pyspark.sql import functions as f

ColumnOrName = Column | str


def merge_anchors(anchors: ColumnOrName = "anchors") -> Column:
    """Return, in an aggregate, the anchors of all rows of a group.

    ``rows.groupBy("value").agg(f.count("*").alias("count"), merge_anchors().alias("anchors"))``
    """
    return f.unhex(f.array_join(f.transform(f.collect_list(anchors), f.hex), ""))


def join_anchors(*anchors: ColumnOrName) -> Column:
    """Return the anchors of a row made from several, as in a join; a side that is null adds none.

    ``orders.join(payments, "id", "left").select("value", join_anchors(orders.anchors, payments.anchors))``
    """
    nothing = f.lit(b"")
    sides = (f.col(side) if isinstance(side, str) else side for side in anchors)
    return f.concat(*(f.coalesce(side, nothing) for side in sides)).alias("anchors")
