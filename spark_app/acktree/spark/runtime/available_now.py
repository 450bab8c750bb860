"""Runs the trigger ``available-now`` on a Spark that cannot run a source in Python to its end (4.0 and 4.1).

There the source itself, by its option ``availableNow``, returns batches until everything that was there at
its first one is done, and then none; a thread here sees that and stops the query.
"""

from contextlib import suppress
from threading import Thread

from pyspark.sql.streaming.query import StreamingQuery

OPTION = "availableNow"


def stop_when_done(query: StreamingQuery) -> None:
    """Stop a query, in a separate thread, as soon as its source has nothing to read."""

    def wait() -> None:
        with suppress(Exception):  # the query has failed, and says why, or was stopped together with its JVM
            query.processAllAvailable()
            query.stop()

    Thread(target=wait, name="acktree-available-now", daemon=True).start()
