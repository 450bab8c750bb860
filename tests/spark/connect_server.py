"""A local Spark Connect server, in a process of its own: PORT."""

import os
import signal
import sys

from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
settings = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": sys.argv[1],
    "spark.ui.enabled": "false",
}
builder = SparkSession.builder.master("local[2,4]")
for key, value in settings.items():
    builder = builder.config(key, value)
builder.getOrCreate()
signal.pause()
