"""The Spark side: every line becomes one row per word; a blank line becomes none."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def words(lines: DataFrame) -> DataFrame:
    """Return a row per word: value is "<place in the line> <word>", key the word, anchors as they came."""
    parts = f.split(f.trim(f.regexp_replace(f.col("value").cast("string"), r"\s+", " ")), " ")
    exploded = lines.select("anchors", f.posexplode(parts).alias("place", "word")).where("word <> ''")
    return exploded.select(
        f.concat_ws(" ", "place", "word").alias("value"), f.col("word").alias("key"), "anchors"
    )
