"""A batch has one stage: with a second one nothing is committed as done that only one of them has written."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt
from acktree.spark.driver.one_stage import SecondStage
from acktree.spark.source import AcktreeStreamReader
from acktree.spark.stage import BadTransform, Stage
from acktree.testing import TopologyTester
from acktree.testing.spark import spark_stub
from acktree.testing.spark.spark_stub import SparkApplication

OF_BOLT = """
name = "t"
[spouts.lines]
topics = ["lines"]
emits = ["raw"]
retry_initial_s = 0.1
[bolts.split]
reads = ["raw"]
emits = ["words", "lengths"]
[bolts.keep]
reads = ["words", "lengths"]
"""
OF_SPOUT = """
name = "t"
[spouts.lines]
topics = ["lines"]
emits = ["words", "lengths"]
retry_initial_s = 0.1
[bolts.keep]
reads = ["words", "lengths"]
"""
WORDS = [f"word{number}" for number in range(10)]
Write = Callable[[Any, int], object]
MakeWrite = Callable[["ApplicationOfFunction"], Write]


class TakeWords(BasicBolt):
    def execute(self, tup, emit):
        pass


class RawCopy(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value)


class ApplicationOfFunction(SparkApplication):
    """A Spark application whose function for ``foreachBatch`` is made by ``make_write``."""

    make_write: MakeWrite
    is_one_pass = True

    def __init__(self, *place: Any, **given: Any) -> None:
        super().__init__(*place, **given)
        self._is_narrow = self.is_one_pass
        self.whole = self.stage
        self.stage = ForeachBatch(self.whole, self)  # type: ignore[assignment]

    def run(self) -> None:
        """Run, and start the query again in this process where its function was interrupted."""
        while True:
            try:
                return super().run()
            except InterruptedError:
                self.reader.stop()
                self.reader = AcktreeStreamReader(self._parsed)

    def stage_to(self, *topics: str) -> Stage:
        """Return a stage that writes to some of the topics."""
        return Stage(lambda rows: {topic: self._transform(rows)[topic] for topic in topics}, self._options)


class ForeachBatch:
    """Calls a function in place of the stage, but for the first batch, which is empty."""

    def __init__(self, stage: Stage, app: ApplicationOfFunction) -> None:
        self._stage, self._app = stage, app
        self._write: Write | None = None

    def __call__(self, rows: Any, number: int) -> None:
        if number and self._write is None:
            self._write = type(self._app).make_write(self._app)
        (self._write or self._stage)(rows, number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


def words_and_lengths(row: Any) -> list[dict[str, Any]]:
    return [{"topic": "words", "value": row.value}, {"topic": "lengths", "value": str(len(row.value))}]


def by_parity(batch: pa.RecordBatch, parity: int) -> pa.RecordBatch:
    last = [value[-1] % 2 == parity for value in batch.column("value").to_pylist()]
    return batch.filter(pa.array(last, pa.bool_()))


def half(rows: Any, parity: int) -> Any:
    return rows.changed(lambda batch: by_parity(batch, parity), rows.columns)


def made_before(app: ApplicationOfFunction) -> Write:
    to_words, to_lengths = app.stage_to("words"), app.stage_to("lengths")
    return lambda rows, number: (to_words(rows, number), to_lengths(rows, number))


def made_and_called_in_other_orders(app: ApplicationOfFunction) -> Write:
    to_lengths, to_words = app.stage_to("lengths"), app.stage_to("words")
    return lambda rows, number: (to_words(rows, number), to_lengths(rows, number))


def made_in_each_batch(app: ApplicationOfFunction) -> Write:
    return lambda rows, number: [app.stage_to(topic)(rows, number) for topic in ("words", "lengths")]


def called_for_each_half(app: ApplicationOfFunction) -> Write:
    stage = app.stage_to("words")
    return lambda rows, number: [stage(half(rows, parity), number) for parity in (0, 1)]


def whole(app: ApplicationOfFunction) -> Write:
    return app.whole


def only_words(app: ApplicationOfFunction) -> Write:
    return app.stage_to("words")


MODES = pytest.mark.parametrize(
    ("is_one_pass", "transactions"),
    [(True, "true"), (False, "true"), (True, "false")],
    ids=["one pass", "two passes", "without transactions"],
)
COMPONENTS = pytest.mark.parametrize("component", ["lines", "split"], ids=["spout", "bolt"])
SECOND_CALLS = pytest.mark.parametrize(
    "make_write", [made_and_called_in_other_orders, made_in_each_batch, called_for_each_half]
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TopologyTester]:
    """Return a topology whose spout, or bolt, Spark writes by what ``make_write`` returns."""

    def make(
        make_write: MakeWrite,
        component: str = "lines",
        is_one_pass: bool = True,
        transactions: str = "true",
        **more: Any,
    ) -> TopologyTester:
        monkeypatch.setattr(ApplicationOfFunction, "make_write", make_write, raising=False)
        monkeypatch.setattr(ApplicationOfFunction, "is_one_pass", is_one_pass)
        monkeypatch.setattr(spark_stub, "SparkApplication", ApplicationOfFunction)
        return TopologyTester(
            parse_topology(OF_SPOUT if component == "lines" else OF_BOLT),
            spouts={} if component == "lines" else {"lines": RawCopy},
            stages={component: words_and_lengths},
            bolts={"keep": TakeWords},
            options={component: {"transactions": transactions}},
            partitions=1,
            **more,
        )

    return make


def send_all(tester: TopologyTester) -> None:
    for word in WORDS:
        tester.send("lines", word)


def committed(tester: TopologyTester, component: str) -> int:
    topic = "lines" if component == "lines" else "raw"
    return tester.committed(topic, 0, component) or 0


@MODES
@COMPONENTS
def test_a_second_stage_is_refused_before_the_first_one_writes(
    run: Callable[..., TopologyTester], component: str, is_one_pass: bool, transactions: str
):
    with run(made_before, component, is_one_pass, transactions) as tester:
        send_all(tester)
        with pytest.raises(SecondStage, match="a batch has exactly one"):
            tester.run_until_done()
        assert (tester.values("words"), tester.values("lengths")) == ([], [])
        assert committed(tester, component) == committed(tester, "lines") == 0


@SECOND_CALLS
@MODES
@COMPONENTS
def test_a_second_call_is_refused_at_every_start_until_one_stage_writes_the_batch_whole(
    run: Callable[..., TopologyTester],
    component: str,
    is_one_pass: bool,
    transactions: str,
    make_write: MakeWrite,
    monkeypatch: pytest.MonkeyPatch,
):
    """Also by a plan whose tasks have the names of those that the refused program has written."""
    with run(make_write, component, is_one_pass, transactions, restart_on=(SecondStage,)) as tester:
        send_all(tester)
        tester.run_for(10)
        assert tester.service(f"{component}-0").starts > 2
        assert tester.values("words")
        assert tester.values("lengths") == []
        assert committed(tester, component) == 0
        is_half = make_write is called_for_each_half
        monkeypatch.setattr(ApplicationOfFunction, "make_write", only_words if is_half else whole)
        tester.run_until_done()
        assert set(tester.values("words")) == set(WORDS)
        assert set(tester.values("lengths")) == (set() if is_half else {"5"})
        assert committed(tester, "lines") == len(WORDS)


@pytest.mark.parametrize("is_new", [False, True], ids=["same stage", "new stage"])
@MODES
@COMPONENTS
def test_a_batch_that_is_run_again_in_the_same_process_is_no_second_one(
    run: Callable[..., TopologyTester], component: str, is_one_pass: bool, transactions: str, is_new: bool
):
    calls: list[int] = []

    def make_write(app: ApplicationOfFunction) -> Write:
        stages = [app.stage_to("words", "lengths") if not is_one_pass else app.stage_to("words")]

        def write(rows: Any, number: int) -> None:
            calls.append(number)
            stages[-1](rows, number)
            if len(calls) == 1:
                if is_new:
                    stages.append(app.stage_to("words"))
                raise InterruptedError("the query ends between the stage and its commit")

        return write

    with run(make_write, component, is_one_pass, transactions) as tester:
        send_all(tester)
        tester.run_until_done()
        assert calls[0] == calls[1]
        assert set(tester.values("words")) == set(WORDS)
        if is_one_pass and transactions == "true":
            assert sorted(tester.values("words")) == sorted(WORDS)


def test_a_stage_that_failed_may_be_called_again_for_its_batch(run: Callable[..., TopologyTester]):
    failed: list[int] = []

    def make_write(app: ApplicationOfFunction) -> Write:
        stage = Stage(lambda rows: fails_once(app, rows), app._options)

        def write(rows: Any, number: int) -> None:
            try:
                stage(rows, number)
            except BadTransform:
                stage(rows, number)

        return write

    def fails_once(app: ApplicationOfFunction, rows: Any) -> Any:
        if not failed:
            failed.append(1)
            raise ValueError("no table yet")
        return app._transform(rows)

    with run(make_write) as tester:
        send_all(tester)
        tester.run_until_done()
        assert failed
        assert sorted(tester.values("words")) == sorted(WORDS)
