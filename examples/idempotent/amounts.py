"""The Spark side: a payment is "ACCOUNT AMOUNT", and becomes one tuple."""

from pyspark.sql import DataFrame


def amounts(payments: DataFrame) -> DataFrame:
    """Return value and key as they came, with their anchors."""
    return payments.select("value", "key", "anchors")
