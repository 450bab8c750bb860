"""The Spark side: an order in JSON becomes one tuple per line; anything else fails."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

ORDER = "id string, customer string, lines array<struct<article: string, quantity: int>>"


def lines(orders: DataFrame) -> DataFrame:
    """Return a row per line: value is JSON, key the order's id; anchors as they came."""
    parsed = orders.select("anchors", f.from_json(f.col("value").cast("string"), ORDER).alias("order"))
    rows = parsed.select(
        "anchors", "order.id", "order.customer", f.posexplode_outer("order.lines").alias("number", "line")
    )
    is_bad = f.col("id").isNull() | f.col("line").isNull()
    return rows.select(
        f.to_json(f.struct("id", "customer", "number", "line.article", "line.quantity")).alias("value"),
        f.col("id").alias("key"),
        "anchors",
        f.when(is_bad, "not an order with lines").alias("fail"),
    )
