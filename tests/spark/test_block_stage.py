"""Blocks through a real Spark: what a stage writes of them, a batch cut off, and all roles together."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import ceil
from pathlib import Path

import pyspark.sql.functions as f
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from acktree.console.demo.account import committed_offsets
from acktree.console.demo.children import ChildProcess
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.wire.ids import Origin, origin_of
from deadlines import stretched
from spark import crashing_jobs
from spark.test_stage_crashes import BIG, SMALL, crash, killed_run
from spark.tester import StageTester

__all__ = ["crash"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
BLOCK = 100
DEADLINE_S = stretched(400)


@pytest.fixture
def tester(spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path) -> Iterator[StageTester]:
    with StageTester.running(spark, bootstrap, unique, tmp_path, block=BLOCK) as made:
        yield made


def blocks(*records: int) -> int:
    """Return how many blocks so many records of each partition make."""
    return sum(ceil(count / BLOCK) for count in records)


def origins(tester: StageTester) -> list[Origin]:
    return [origin_of(root) for root in tester.inits]


def halves(rows: DataFrame, name: str) -> dict[str, DataFrame]:
    """Of every second record nothing comes out."""
    return {f"{name}.a": rows.where("offset % 2 = 0").select("value", "anchors")}


def doubled(rows: DataFrame, name: str) -> dict[str, DataFrame]:
    """Two branches: not narrow."""
    kept = rows.where("offset % 2 = 0").select("value", "anchors")
    return {f"{name}.a": kept.union(kept)}


@pytest.mark.slow
@pytest.mark.parametrize(("transform", "tuples_each"), [(halves, 1), (doubled, 2)])
def test_a_block_has_one_init_for_all_its_rows_and_its_records_are_replayed_alone(
    tester: StageTester, transform: Callable[[DataFrame, str], dict[str, DataFrame]], tuples_each: int
) -> None:
    """The blocks at 100 are failed by a bolt; the first block by the stage, which rejects one of its rows."""
    tester.send([f"{n}" for n in range(250)])
    tester.send([f"{n}" for n in range(130)], partition=1)
    topic = f"{tester.name}.a"

    def reject_once(rows: DataFrame) -> dict[str, DataFrame]:
        kept = transform(rows, tester.name)[topic].withColumn("text", f.col("value").cast("string"))
        is_bad = (f.col("text") == "222") & f.lit(not tester.failed)
        return {topic: kept.withColumn("fail", f.when(is_bad, "no good")).drop("text")}

    tester.start(reject_once)
    tester.until_the_end(lambda root: origin_of(root).attempt == 0 and origin_of(root).offset == BLOCK)
    first = {(o.slot, o.offset) for o in origins(tester) if o.attempt == 0}
    again = {(o.slot, o.offset) for o in origins(tester) if o.attempt == 1}
    assert first == {(0, 0), (0, 100), (0, 200), (1, 0), (1, 100)}
    assert again == {
        *((slot, offset) for slot in (0, 1) for offset in range(100, 130)),
        *((0, offset) for offset in range(130, 250)),
    }
    assert len(tester.inits) == 5 + len(again)
    rejected = [(origin_of(root).offset, reason) for root, reason in tester.failed.items()]
    assert rejected == [(200, "no good")]
    emitted = (250 + 130 + 100 + 50 + 30) // 2 - 1
    assert len(tester.tuples) == emitted * tuples_each
    assert tester.committed() == [250, 130]


@pytest.mark.slow
def test_a_narrow_batch_of_blocks_whose_driver_was_killed_is_written_exactly_once(
    tester: StageTester, crash: Callable[[str, str], None]
) -> None:
    tester.send([f"{n}" for n in range(BIG - 1)] + ["fatal"])
    tester.send([f"{n}" for n in range(SMALL)], partition=1)
    crash("driver", "another task is committed")
    killed_run(tester, "narrow")
    tester.start(crashing_jobs.narrow)
    tester.until_the_end()
    assert (len(tester.tuples), len(tester.inits)) == (BIG + SMALL, blocks(BIG, SMALL))
    assert tester.failed == {}
    assert tester.committed() == [BIG, SMALL]


@pytest.mark.slow
def test_the_blocks_of_an_interrupted_shuffled_batch_are_replayed(
    tester: StageTester, crash: Callable[[str, str], None]
) -> None:
    tester.send([f"{n}" for n in range(BIG - 1)] + ["fatal"])
    crash("task", "some is written")
    tester.start(crashing_jobs.doubled)
    tester.until(lambda: len(tester.failed) == blocks(BIG))
    tester.until_the_end()
    tester.check_replayed(BIG, blocks(BIG))
    assert tester.committed() == [BIG, 0]


WHOLE_TOPOLOGY = """
name = "{name}"
ackers = 2
message_timeout_s = 300
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.out"]
max_pending = 1000
block = 100
retry_initial_s = 0.1
[bolts.keep]
reads = ["{name}.out"]
"""
RECORDS = 4_000


@pytest.mark.slow
def test_counts_of_blocks_are_exact_after_the_driver_is_killed(
    bootstrap: str, unique: str, tmp_path: Path
) -> None:
    """Every record is executed once, those of the blocks with a failing record once more, alone."""
    topic, group, database = f"{unique}.source", f"{unique}.in", tmp_path / "kept.sqlite"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2)])[topic].result()
    apply_topology(bootstrap, parse_topology(WHOLE_TOPOLOGY.format(name=unique)), {})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=number % 2)
    producer.flush()
    common = ["--topology", unique, "-b", bootstrap]
    spark = ["spark", "run", "spark.block_jobs:same", "--spout", "in", "--trigger", "available-now"]
    commands = {
        "acker": ["acker", "run", *common],
        "worker": ["bolt", "run", "spark.block_jobs:RecordExecutions", *common],
        "spark": [*spark, "--checkpoint", str(tmp_path / "checkpoint"), *common],
    }
    with ExitStack() as running:
        children = {}
        for name, command in commands.items():
            environment = {"KEEP_DATABASE": str(database)}
            children[name] = ChildProcess(
                name, command, Path(__file__).parents[1], tmp_path / name, environment
            )
            running.callback(children[name].stop)
            children[name].start()
        deadline = time.monotonic() + DEADLINE_S
        while committed_offsets(bootstrap, group, topic, 2)[1] < RECORDS // 4:
            assert time.monotonic() < deadline, {name: child.tail() for name, child in children.items()}
            assert children["spark"].exit_code is None, children["spark"].tail()
            time.sleep(0.2)
        children["spark"].kill()
        children["spark"].start()
        while children["spark"].exit_code is None:
            assert time.monotonic() < deadline, {name: child.tail() for name, child in children.items()}
            time.sleep(0.1)
        assert children["spark"].exit_code == 0, children["spark"].tail()
    assert committed_offsets(bootstrap, group, topic, 2) == (RECORDS, RECORDS)
    rows = sqlite3.connect(database).execute("select part, first, attempt, record from executed")
    executed = Counter((part, first, attempt, int(record)) for part, first, attempt, record in rows)
    block_of = {number: (number % 2, number // 2 // BLOCK * BLOCK) for number in range(RECORDS)}
    failing = {block_of[number] for number in range(0, RECORDS, 1_000)}
    first_time = Counter((*block, 0, number) for number, block in block_of.items())
    again = Counter(
        (number % 2, number // 2, 1, number) for number, block in block_of.items() if block in failing
    )
    assert executed == first_time + again
