"""Compiles all loops, and keeps the machine code on disk for the processes that the tests start."""

from acktree.acker import warm_up as acker
from acktree.spark.tasks import warm_up as spark

for part in (acker, spark):
    part.warm_up()
