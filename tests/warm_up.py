"""Compiles all loops, and keeps the machine code on disk for the processes that the tests start.

The same for the classes of Spark: a start takes a quarter less CPU time, and the tests start dozens.
"""

import sys

from acktree.acker import warm_up as acker
from acktree.spark import warm_up as spark
from acktree.spark.runtime import class_archive

for part in (acker, spark):
    part.warm_up()

try:
    class_archive.make_archive()
except (class_archive.NoArchive, OSError) as reason:
    print(f"Spark starts without an archive of its classes: {reason}", file=sys.stderr)
