"""Rows that fail and say when: ``retry`` and ``retry_after_s`` in each kind of plan, on a real Spark."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from acktree.console.demo.account import committed_offsets
from acktree.console.demo.children import ChildProcess
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.spark import app
from acktree.wire.codec import decode_ack_init, decode_result_record
from acktree.wire.control_records import BACK_OFF, NEVER, Result
from acktree.wire.ids import origin_of
from spark import declared
from spark.declared import RowSource
from spark.test_stages_in_a_row import consume
from spark.tester import DEADLINE_S, StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
Plan = Callable[[DataFrame], DataFrame]

# What rows say, by their values: (fail, retry, retry_after_s), and what is sent to the acker.
SAID: dict[str, tuple[str | None, bool | None, float | None, int]] = {
    "fine": (None, False, -1.0, 0),
    "plain": ("bad", None, None, BACK_OFF),
    "again": ("bad", True, None, BACK_OFF),
    "later": ("bad", None, 1.5, 1_500),
    "at once": ("bad", True, 0.0, 0),
    "never": ("bad", False, None, NEVER),
    "negative": ("bad", None, -1.0, BACK_OFF),
    "no number": ("bad", None, math.nan, BACK_OFF),
    "too long": ("bad", None, 1e9, BACK_OFF),
    "both": ("bad", False, 60.0, BACK_OFF),
}
MISUSED = {"negative": "-1.0", "no number": "nan", "too long": "1000000000.0", "both": "retry=False"}


def saying(rows: DataFrame) -> DataFrame:
    """Give each row the columns that its value stands for."""
    word = f.col("value").cast("string")
    columns = {}
    for at, (name, kind) in enumerate(
        (("fail", "string"), ("retry", "boolean"), ("retry_after_s", "double"))
    ):
        cell = f.lit(None)
        for value, said in SAID.items():
            cell = f.when(word == value, f.lit(said[at])).otherwise(cell)
        columns[name] = cell.cast(kind)
    return rows.select("value", "anchors", "offset").withColumns(columns).drop("offset")


def in_one_pass(tester: StageTester) -> None:
    tester.start(lambda rows: {f"{tester.name}.a": saying(rows)}, trigger="")


def in_two_passes(tester: StageTester) -> None:
    tester.start(lambda rows: {f"{tester.name}.a": saying(rows).repartition(2)}, trigger="")


def declared_narrow(tester: StageTester) -> None:
    tester.query = declared.write(tester, saying(declared.lines(tester)))


def row_by_row(tester: StageTester) -> None:
    """As Spark 4.0 hands rows over."""
    rows = saying(declared.lines(tester))
    tester.spark.dataSource.register(RowSource)
    tester.query = declared.write(tester, rows)


PLANS = [in_one_pass, in_two_passes, declared_narrow, row_by_row]


@pytest.mark.slow
@pytest.mark.parametrize("start", PLANS)
def test_each_failed_row_says_when_to_retry_and_a_wrong_value_fails_only_its_row(
    tester: StageTester, start: Callable[[StageTester], None]
) -> None:
    tester.send([*SAID])
    start(tester)
    tester.until(lambda: len(tester.failed) >= len(SAID) - 1 and len(tester.tuples) >= 1)
    words = [*SAID]
    first = {words[origin_of(root).offset]: root for root in tester.failed if origin_of(root).attempt == 0}
    assert {word: tester.retries[root] for word, root in first.items()} == {
        word: said[3] for word, said in SAID.items() if word != "fine"
    }
    for word, root in first.items():
        if word in MISUSED:
            assert tester.failed[root].startswith("InvalidRetry: column retry_after_s")
            assert MISUSED[word] in tester.failed[root]
        else:
            assert tester.failed[root] == "bad"
    assert [value for _, value, _ in tester.tuples] == [b"fine"]


TOPOLOGY = """
name = "{name}"
ackers = 2
message_timeout_s = 600
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.out"]
retry_initial_s = 1000
retry_max_s = 1000
max_attempts = 2
block = {block}
[bolts.last]
reads = ["{name}.out"]
emits = ["{name}.end"]
"""
PAD = "." * 200
RECORDS = 1_200
POISON, LATER, MANY = 700, 401, 1_000
"""Offsets of records that fail; the third yields rows that say different things."""
DELAY_S = 3.0


def refuse(rows: DataFrame) -> DataFrame:
    """Reject the poison, ask to wait with another; of the rows of a third the strictest has to win."""
    word = f.split(f.col("value").cast("string"), " ")
    copies = f.explode(f.when(word[0] == "many", f.array(*map(f.lit, range(3)))).otherwise(f.array(f.lit(0))))
    each = rows.select("value", "anchors", word[0].alias("word"), copies.alias("copy"))
    is_many = f.col("word") == "many"
    made = each.withColumns(
        {
            "fail": f.when(f.col("word").isin("poison", "later", "many"), f.concat("word", f.lit(" row"))),
            "retry": ~((f.col("word") == "poison") | (is_many & (f.col("copy") == 1))),
            "retry_after_s": f.when((f.col("word") == "later") | (is_many & (f.col("copy") == 0)), DELAY_S),
        }
    )
    return made.drop("word", "copy")


def same(rows: DataFrame) -> DataFrame:
    return rows.select("value", "anchors")


@dataclass
class Whole:
    """A topology with a real acker, its records in a source topic of one partition, and what its log says."""

    bootstrap: str
    name: str
    spark: SparkSession
    folder: Path
    running: ExitStack

    def set_up(self, block: int = 1) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(f"{self.name}.source", 1)])[f"{self.name}.source"].result()
        apply_topology(self.bootstrap, parse_topology(TOPOLOGY.format(name=self.name, block=block)), {})
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for offset in range(RECORDS):
            word = {POISON: "poison", LATER: "later", MANY: "many"}.get(offset, "good")
            if block > 1 and word != "poison":
                word = "good"
            producer.produce(f"{self.name}.source", f"{word} {offset} {PAD}")
        producer.flush()
        place = ["--topology", self.name, "-b", self.bootstrap]
        child = ChildProcess("acker", ["acker", "run", *place], self.folder, self.folder / "acker.log", {})
        self.running.callback(child.stop)
        child.start()
        child.wait_ready(lambda: None)

    def run(self, spout: Plan, bolt: Plan, of_spout: dict[str, str] | None = None) -> None:
        """Run both applications until every record is done or a dead letter."""
        role = {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name}
        reads, emits = {**role, "bolt": "last"}, {**role, "spout": "in", **(of_spout or {})}
        last = app.start(self.spark, bolt, reads, self.folder / "last", "100 milliseconds")
        self.running.callback(last.stop)
        first = app.start(self.spark, spout, emits, self.folder / "in", app.AVAILABLE_NOW)
        self.running.callback(first.stop)
        assert first.awaitTermination(DEADLINE_S), last.exception()
        assert first.exception() is None

    def records(self, topic: str) -> list[Message]:
        return consume(self.bootstrap, f"{self.name}.{topic}")

    def emitted_ms(self, offset: int) -> list[int]:
        """Return when each init of a record was appended to the log."""
        found = []
        for message in self.records("ack-init"):
            roots = decode_ack_init(message.value() or b"").inits["root"].tolist()
            if any(origin_of(root).offset == offset for root in roots):
                found.append(message.timestamp()[1])
        return sorted(found)

    def failed_ms(self, offset: int) -> int:
        """Return when the first failure of a record was appended to the log of results."""
        for message in self.records("spout-0"):
            result = decode_result_record(message.value() or b"")
            if isinstance(result, Result) and any(
                origin_of(each.root).offset == offset for each in result.failed
            ):
                return int(message.timestamp()[1])
        raise AssertionError(f"record {offset} has not failed")

    def dead_letters(self) -> dict[int, tuple[str, str, str]]:
        """Return attempts, cause and reason of each dead letter, by its source offset; one each."""
        letters = [dict(message.headers() or []) for message in self.records("dead-letter")]
        found = {
            int(headers["acktree-origin"].rpartition(b"/")[2]): tuple(
                str(headers[f"acktree-{name}"], "utf-8") for name in ("attempts", "cause", "reason")
            )
            for headers in letters
        }
        assert len(found) == len(letters)
        return found  # type: ignore[return-value]

    def check(self) -> None:
        """Check what all plans have to do with the three records that fail, and with all others."""
        assert self.dead_letters() == {
            POISON: ("1", "REJECTED", "poison row"),
            MANY: ("1", "REJECTED", "many row"),
            LATER: ("2", "FAILED", "later row"),
        }
        _, second_ms = self.emitted_ms(LATER)
        assert second_ms >= self.failed_ms(LATER) + DELAY_S * 1_000
        assert (len(self.emitted_ms(POISON)), len(self.emitted_ms(MANY))) == (1, 1)
        numbers = [int((message.value() or b"").split(b" ")[1]) for message in self.records("end")]
        assert sorted(numbers) == [n for n in range(RECORDS) if n not in (POISON, LATER, MANY)]
        assert committed_offsets(self.bootstrap, f"{self.name}.in", f"{self.name}.source", 1)[0] == RECORDS
        letters = self.records("dead-letter")
        rejected_ms = min(
            m.timestamp()[1] for m in letters if b"REJECTED" in dict(m.headers() or []).values()
        )
        assert rejected_ms < second_ms, "a rejected record waits for nobody"


@pytest.fixture
def whole(spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path) -> Iterator[Whole]:
    with ExitStack() as running:
        yield Whole(bootstrap, unique, spark, tmp_path, running)


SPOUTS: dict[str, tuple[Plan, dict[str, str]]] = {
    "one pass": (refuse, {}),
    "two passes": (lambda rows: refuse(rows).repartition(2), {}),
    "declared": (refuse, {"plan": "narrow"}),
}


@pytest.mark.parametrize(
    "plan", ["one pass", *(pytest.param(name, marks=pytest.mark.slow) for name in ("two passes", "declared"))]
)
@pytest.mark.promise("one source record that always fails … that a bolt or stage delays")
def test_a_spouts_row_is_rejected_immediately_or_emitted_again_after_its_delay(
    whole: Whole, plan: str
) -> None:
    whole.set_up()
    refusing, options = SPOUTS[plan]
    whole.run(refusing, same, of_spout=options)
    whole.check()


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["one pass", "two passes"])
def test_a_bolts_row_is_rejected_immediately_or_its_record_replayed_after_its_delay(
    whole: Whole, plan: str
) -> None:
    whole.set_up()
    whole.run(same, SPOUTS[plan][0])
    whole.check()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["spout", "bolt"])
def test_only_the_record_of_a_rejected_row_in_a_block_becomes_a_dead_letter(whole: Whole, role: str) -> None:
    whole.set_up(block=100)
    whole.run(*((refuse, same) if role == "spout" else (same, refuse)))
    assert whole.dead_letters() == {POISON: ("1", "REJECTED", "poison row")}
    ended = {int((message.value() or b"").split(b" ")[1]) for message in whole.records("end")}
    assert ended == {*range(RECORDS)} - {POISON}
    assert committed_offsets(whole.bootstrap, f"{whole.name}.in", f"{whole.name}.source", 1)[0] == RECORDS
