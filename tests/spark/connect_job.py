"""A word count by a client of Spark Connect: REMOTE BOOTSTRAP TOPOLOGY CHECKPOINT [crashing]."""

import sys

from pyspark import SparkContext
from pyspark.sql import SparkSession

from acktree.spark.app import AVAILABLE_NOW, start
from spark import crashing_jobs
from spark.declared import words

if __name__ == "__main__":
    remote, bootstrap, topology, checkpoint, *crashing = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap, "topology": topology, "spout": "in"}
    options |= {"plan": "narrow", "topic": f"{topology}.a"}
    plan = (lambda rows: words(crashing_jobs.dying(rows))) if crashing else words
    query = start(spark, plan, options, checkpoint, AVAILABLE_NOW)
    assert type(query).__module__.startswith("pyspark.sql.connect")
    assert SparkContext._active_spark_context is None
    query.awaitTermination()
    assert query.exception() is None
