"""What a commit of a spout's driver costs, and a start, with records that are done out of order.

    python benchmarks/spout_commits.py

Every second record is done: so each partition has a gap behind each of them. A commit has changed all
partitions; its bytes are those of the broker's logs, markers included. Invariant: what is timed is the
driver's own call, on a real broker.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np

from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.spark.shared.options import SourceOptions
from acktree.wire.control_records import Result
from acktree.wire.ids import IdArray, generation_of, root_ids
from clock import Spent, this_process
from harness import Cluster, Table, arguments, cluster, flush, new_name, produce

TOPOLOGY = """
name = "{name}"
ackers = 1
[spouts.in]
topics = ["{name}.in"]
emits = ["{name}.out"]
max_pending = 10000000
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="in flight, of all partitions")
    parser.add_argument("--partitions", default="1,64,1000", help="numbers, with commas between them")
    parser.add_argument("--commits", type=int, default=20)
    asked = parser.parse_args()
    with cluster(asked) as kafka:
        table = Table("partitions", "commit, ms", "CPU ms", "KB", "start, ms", "gaps")
        for partitions in map(int, asked.partitions.split(",")):
            table.row(*measure(kafka, partitions, asked.records, asked.commits))


def measure(kafka: Cluster, partitions: int, records: int, commits: int) -> tuple[str | float, ...]:
    """Return a row of the table."""
    with kafka.deployment(TOPOLOGY.format(name=new_name()), {"in": partitions}) as deployment:
        name, each = deployment.name, records // partitions
        producer = kafka.producer()
        for number in range(each * partitions):
            produce(producer, f"{name}.in", b"", partition=number % partitions)
        flush(producer)
        took: list[Spent] = []
        with _driver(kafka.bootstrap, name) as (driver, _):
            run = _emit_all(driver, each * partitions)
            steps, written = np.array_split(np.arange(1, each, 2), commits), _written_bytes(kafka, name)
            for offsets in steps:
                acked = [root_ids(slot, generation_of(run, 0), offsets) for slot in range(partitions)]
                _finish(driver, np.concatenate(acked))
                before = this_process()
                driver.commits.commit()
                took.append(this_process().since(before))
            commit_kb = (_written_bytes(kafka, name) - written) / 1000 / len(steps)
        with _driver(kafka.bootstrap, name) as (_, start):
            pass
    commit_ms, cpu_ms = (1000 * median(getattr(one, of) for one in took) for of in ("wall_s", "cpu_s"))
    gaps = len(np.arange(1, each, 2)) * partitions
    return str(partitions), commit_ms, cpu_ms, commit_kb, 1000 * start.wall_s, gaps


def _written_bytes(kafka: Cluster, name: str) -> int:
    """Return the bytes of all logs that a commit of the spout writes to."""
    return sum(map(kafka.log_bytes, (f"{name}.state-in", "__consumer_offsets", "__transaction_state")))


@contextmanager
def _driver(bootstrap: str, name: str) -> Iterator[tuple[SpoutDriver, Spent]]:
    """Yield a driver that has taken over, and what that took."""
    given = {"kafka.bootstrap.servers": bootstrap, "topology": name, "spout": "in"}
    driver, before = SpoutDriver(SourceOptions.parse(given)), this_process()
    driver.open(None)
    yield driver, this_process().since(before)
    driver.close()


def _emit_all(driver: SpoutDriver, records: int) -> int:
    """Emit all records, as Spark asks for batches; return the run."""
    emitted = 0
    while emitted < records:
        driver.service(0.0)
        batch = driver.next_batch(driver.log_ends(), None)
        if batch is not None:
            emitted += batch.records
            driver.written(batch)
        for task in driver.tasks.values():
            for ledger in task.slots.values():
                ledger.limit.allowed = records
    return next(ledger.run for task in driver.tasks.values() for ledger in task.slots.values())


def _finish(driver: SpoutDriver, roots: IdArray) -> None:
    """Apply what an acker says when trees are done."""
    for task in driver.tasks.values():
        task.apply(Result(0, roots), 0.0, 0.0)


if __name__ == "__main__":
    main()
