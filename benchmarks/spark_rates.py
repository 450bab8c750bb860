"""Spark tracked, Spark untracked and Spark's own Kafka connector: the same records and transforms, in turn.

    python benchmarks/spark_rates.py [-b HOST:PORT] [--records N] [--rounds 3] [--rival]
                                       [--pipeline line-split]
    python benchmarks/spark_rates.py --small    triggers of 100 records
    python benchmarks/spark_rates.py --start    from the start of `acktree spark run` to its first record

Tracked has everything: anchors, inits, an acker in its own process, results, commits. Untracked is the same
topology with ackers = 0: no header, no init; a record is done when its batch is. The rival is Spark's Kafka
source and sink, as it is and with a Python function that does nothing. A run is one query from start to end.
CPU is that of the driver, its JVM, their Python workers and the acker; the broker is left out.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from clock import Spent, TreeClock
from harness import (
    Cluster,
    Deployment,
    Table,
    arguments,
    cluster,
    flush,
    in_turn,
    new_name,
    produce,
    some_of,
    spread,
)

LINE = b"one record of a hundred bytes that is split into some twenty words so that the stage has a lot to do"
PIPELINES = ("pass-through", "line-split")
WARM_UP_ROUNDS = 2
"""Spark's JVM compiles what a query needs for two runs of half a minute."""
SMALL, WARM_UP_TRIGGERS = 100, 5
TOPOLOGY = """
name = "{name}"
ackers = {ackers}
message_timeout_s = 300
[spouts.in]
topics = ["{source}"]
emits = ["{name}.out"]
max_pending = {max_pending}
block = {block}
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, default=200_000, help="records of 100 bytes a run")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each kind, in turn")
    parser.add_argument("--pipeline", type=some_of(PIPELINES), default=PIPELINES, help="what the stage does")
    parser.add_argument(
        "--block", type=int, default=0, metavar="N", help="also tracked by blocks of N records"
    )
    parser.add_argument("--rival", action="store_true", help="Spark's connector, too; fetches Spark 4.0")
    parser.add_argument("--small", action="store_true", help="measure triggers of 100 records instead")
    parser.add_argument("--start", action="store_true", help="measure the start of `spark run` instead")
    parser.add_argument("--without-native", action="store_true", help="measure with ACKTREE_NATIVE=off")
    asked = parser.parse_args()
    if asked.without_native:
        os.environ["ACKTREE_NATIVE"] = "off"
    with cluster(asked) as kafka, ExitStack() as running:
        if asked.start:
            from spark_start import print_starts

            print_starts(kafka, asked.rounds)
            return
        clock = running.enter_context(TreeClock(os.getpid(), kafka.broker_pid))
        source = running.enter_context(filled(kafka, 0 if asked.small else asked.records))
        own = OwnSpark(kafka, source, asked.records, clock)
        if asked.small:
            print_triggers(own, 10 * asked.rounds)
            return
        kinds: dict[str, Callable[[str], Spent]] = {
            "tracked": own.tracked,
            "untracked": partial(own.run, ackers=0),
        }
        if asked.block > 1:
            kinds[f"tracked by blocks of {asked.block}"] = partial(own.run, ackers=1, block=asked.block)
        if asked.rival:
            from spark_rival import Rival

            rival = Rival(kafka, source, clock)
            running.callback(rival.stop)
            kinds |= {"Spark's connector": rival.plain, "with Python": rival.with_python}
        for pipeline in asked.pipeline:
            measures = {kind: partial(measure, pipeline) for kind, measure in kinds.items()}
            print_runs(pipeline, in_turn(measures, asked.rounds, WARM_UP_ROUNDS), asked.records)


def print_runs(pipeline: str, runs: dict[str, list[Spent]], records: int) -> None:
    """Print medians, the spread of the rate, and the rate beside tracked."""
    table = Table(
        f"{pipeline}, {records:,} records", "records/s", "min", "max", "CPU s a million", "tracked / this"
    )
    rates = {kind: spread([records / run.wall_s for run in of_kind]) for kind, of_kind in runs.items()}
    for kind, of_kind in runs.items():
        cpu_s = spread([run.cpu_s / records * 1e6 for run in of_kind])[0]
        table.row(kind, *rates[kind], cpu_s, rates["tracked"][0] / rates[kind][0])


def print_triggers(own: "OwnSpark", count: int) -> None:
    took_ms = own.trigger_times_ms(WARM_UP_TRIGGERS + count)[WARM_UP_TRIGGERS:]
    table = Table(f"triggers of {SMALL} records", "median, ms", "min", "max", "triggers")
    table.row("tracked", *spread(took_ms), len(took_ms))


@contextmanager
def filled(kafka: Cluster, records: int, partitions: int = 2) -> Iterator[str]:
    """Yield the name of a source topic with ``records`` records of 100 bytes."""
    name = new_name()
    kafka.create_topic(f"{name}.in", partitions)
    try:
        send(kafka, f"{name}.in", records, partitions)
        yield f"{name}.in"
    finally:
        kafka.delete_topics(name)


def send(kafka: Cluster, topic: str, records: int, partitions: int = 2) -> None:
    """Write records of 100 bytes, in turn to all partitions."""
    producer = kafka.producer()
    for number in range(records):
        produce(producer, topic, LINE, partition=number % partitions)
    flush(producer)


class OwnSpark:
    """Our source and sink in one Spark session, with or without tracking."""

    def __init__(self, kafka: Cluster, source: str, records: int, clock: TreeClock) -> None:
        from acktree.console.demo.run import wordcount_folder
        from acktree.spark import app

        self._kafka, self._source, self._max_pending, self._clock = kafka, source, records, clock
        sys.path.insert(0, str(wordcount_folder()))
        words = app.load_function("split_lines:words")
        self._transforms = {"pass-through": _same, "line-split": words}
        self._spark = app.make_session("acktree benchmark")

    def tracked(self, pipeline: str) -> Spent:
        return self.run(pipeline, ackers=1)

    def run(self, pipeline: str, ackers: int, block: int = 1) -> Spent:
        """Run one query to its end; a block is as many consecutive records with one root."""
        with self.deployment(ackers, block) as deployment:
            begin = self._clock()
            self.start(pipeline, deployment, "available-now").awaitTermination()
            return self._clock().since(begin)

    def start(self, pipeline: str, deployment: Deployment, trigger: str) -> Any:
        """Start the query."""
        from acktree.spark import app

        options = {"kafka.bootstrap.servers": self._kafka.bootstrap, "topology": deployment.name}
        checkpoint = deployment.folder / "checkpoint"
        transform = self._transforms[pipeline]
        return app.start(self._spark, transform, options | {"spout": "in"}, checkpoint, trigger)

    @contextmanager
    def deployment(self, ackers: int, block: int = 1) -> Iterator[Deployment]:
        """Publish a topology and run its acker."""
        limits = {"max_pending": self._max_pending, "block": block}
        text = TOPOLOGY.format(name=new_name(), ackers=ackers, source=self._source, **limits)
        with self._kafka.deployment(text) as deployment:
            if ackers:
                deployment.start("acker", "run")
            yield deployment

    def trigger_times_ms(self, triggers: int) -> list[float]:
        """Return the milliseconds from a trigger with SMALL records to its end, one by one."""
        with self.deployment(ackers=1) as deployment:
            query = self.start("pass-through", deployment, "")
            took_ms: dict[int, float] = {}
            while len(took_ms) < triggers:
                send(self._kafka, self._source, SMALL)
                known = len(took_ms)
                while len(took_ms) == known:
                    time.sleep(0.01)
                    for progress in query.recentProgress:
                        if progress["numInputRows"]:
                            duration_ms = progress["durationMs"]["triggerExecution"]
                            took_ms.setdefault(progress["batchId"], duration_ms)
            query.stop()
            return list(took_ms.values())


def _same(rows: Any) -> Any:
    return rows


if __name__ == "__main__":
    main()
