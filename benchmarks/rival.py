"""What the bench compares with: Spark's own Kafka source and sink, in a separate Spark and process.

Run by the interpreter of a virtual environment that holds PySpark 4.0, for which there are connector jars; it
imports nothing of acktree. Reads one JSON request a line, answers one JSON line with the seconds it took.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark would take another python3 for its workers
    builder = SparkSession.builder.master("local[2]").config("spark.jars.packages", PACKAGE)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": _run(spark, **json.loads(line))}), flush=True)


def _run(
    spark: Any, bootstrap: str, source: str, sink: str, kind: str, python: bool, checkpoint: str
) -> float:
    began_s = time.perf_counter()
    rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    rows = rows.option("subscribe", source).option("startingOffsets", "earliest").load().select("value")
    if kind == "line-split":
        rows = rows.select(f.explode(f.split(f.col("value").cast("string"), " ")).alias("value"))
    if python:
        rows = rows.mapInArrow(_same, rows.schema)
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", sink).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - began_s


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    main()
