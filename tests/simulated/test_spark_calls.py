"""Spark 4.0 and 4.1 do not say where a batch starts: nothing is lost, whatever dies.

What a bolt reads is acked and committed on the word of Spark that its batch has ended; a batch that Spark was
only shown has not.
"""

from collections.abc import Callable

import pytest

from acktree.core.topology.file import parse_topology
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.testing import TopologyTester
from acktree.testing.spark.spark_stub import Calls, SparkApplication
from acktree.testing.virtual.kernel import Process
from simulated.test_spark_stub import DRIVER_STEPS, WORDS, application, at, send_all, with_words, words

BOLT_IN_SPARK = """
name = "t"
[spouts.lines]
topics = ["lines"]
emits = ["words"]
retry_initial_s = 0.1
[bolts.keep]
reads = ["words"]
emits = ["out"]
"""
OLD = [Calls.WITHOUT_START, Calls.REPORTED]


@pytest.fixture(params=OLD, ids=["once", "reported"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setattr(SparkApplication, "calls", request.param)
    found: Calls = request.param
    return found


def two_stages(**options: str) -> TopologyTester:
    stages = {"lines": words, "keep": lambda row: [row.value]}
    topology = parse_topology(BOLT_IN_SPARK)
    return TopologyTester(topology, stages=stages, options={"lines": options, "keep": options})


def kill_keep(tester: TopologyTester, times: int) -> Callable[[Process], None]:
    """Return what kills the bolt's driver the first times that it is called in it."""
    left = [times]

    def strike(process: Process) -> None:
        if process.name == "keep-0" and left[0]:
            left[0] -= 1
            tester.kernel.kill(process)

    return strike


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_a_spouts_driver_killed_at_any_step_loses_nothing(calls: Calls, step: str, times: int):
    with with_words(options={"lines": {"maxOffsetsPerTrigger": "3"}}) as tester:
        send_all(tester)
        struck = at(tester, step, tester.kernel.kill, times)
        tester.run_until_done()
        send_all(tester)
        tester.run_until_done()
        assert struck[step] >= 1
        assert set(tester.values("words")) == set(WORDS)
        assert len(tester.acked("lines")) == 2 * len(WORDS)


@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_a_bolts_driver_killed_at_any_step_loses_nothing(calls: Calls, step: str):
    with two_stages(maxOffsetsPerTrigger="3") as tester:
        at(tester, step, kill_keep(tester, 2), 10_000)
        send_all(tester)
        tester.run_until_done()
        assert set(tester.values("out")) == set(WORDS)
        assert tester._services.of("keep")[0].starts > 1


@pytest.mark.parametrize(
    "step", ["spark.latest_offset", "spark.log_offset", "spark.partitions", "spark.stage"]
)
def test_a_bolt_commits_nothing_of_a_shown_or_logged_batch_that_has_not_ended(calls: Calls, step: str):
    """Whenever its driver dies before the batch is written, its tuples are acked by the next one."""
    with two_stages() as tester:
        written: list[int] = []

        def kill_once_something_is_read(process: Process) -> None:
            if process.name == "keep-0" and tester.values("words") and not written:
                written.append(len(tester.values("out")))
                tester.kernel.kill(process)

        at(tester, step, kill_once_something_is_read, times=10_000)
        send_all(tester)
        tester.run_until_done()
        assert set(tester.values("out")) == set(WORDS)


def test_the_cap_holds_where_spark_gives_no_limit(calls: Calls):
    with with_words(options={"lines": {"maxOffsetsPerTrigger": "2"}}) as tester:
        send_all(tester)
        tester.run_until_done()
        logged = application(tester).checkpoint.offsets
        assert len(logged) >= len(WORDS) / 2
        assert sorted(tester.values("words")) == sorted(WORDS)


def counted(tester: TopologyTester, name: str) -> int:
    """Return what the tasks of the spout have counted."""
    driver = application(tester).reader._driver
    assert isinstance(driver, SpoutDriver)
    return sum(int(task.counters[name]) for task in driver.tasks.values())


@pytest.mark.parametrize("topic", ["lines", "words"])
def test_a_damaged_record_stops_neither_a_bolt_nor_a_spout_that_may_lose_records(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with two_stages(failOnDataLoss="false") as tester:
        tester.send("lines", "a", partition=0)
        tester.run_until_done()
        tester.kill("lines" if topic == "lines" else "keep", restart_after_s=5)
        tester.send("lines", "b", partition=0)
        tester.run_for(2)
        log = next(each for each in tester.cluster.topics[topic].partitions if each.end_offset > 1)
        log.damage(next(each.offset for each in reversed(log.records) if each.value == b"b"))
        tester.send("lines", "c", partition=0)
        tester.run_until_done()
        kept = {"a", "c"} if topic == "lines" else {"a", "b", "c"}
        assert set(tester.values("out")) == kept
        tester.run_for(10)
        assert (counted(tester, "lost"), counted(tester, "absent")) == (3 - len(kept), 0)
    assert "are damaged in the log" in caplog.text


@pytest.mark.parametrize("is_planned", [True, False], ids=["in a logged batch", "before it is planned"])
def test_lines_removed_by_retention_before_they_are_read_are_logged_and_counted_as_lost(
    is_planned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with with_words(options={"lines": {"failOnDataLoss": "false"}}) as tester:
        tester.send("lines", "first", partition=0)
        tester.run_until_done()
        log = tester.cluster.topics["lines"].partitions[0]
        if is_planned:
            at(tester, "spark.partitions", lambda _process: log.delete_before(4))
        else:
            tester.kill("lines", restart_after_s=5)
        for text in ("a", "b", "c", "d"):
            tester.send("lines", text, partition=0)
        if not is_planned:
            log.delete_before(4)
        tester.run_until_done()
        tester.run_for(10)
        assert sorted(tester.values("words")) == ["d", "first"]
        assert (counted(tester, "lost"), counted(tester, "absent")) == (3, 0)
    assert "lines/0: offsets 1 to 3 are lost and counted as done" in caplog.text


def test_lines_that_compaction_has_removed_are_counted_as_absent() -> None:
    with with_words() as tester:
        tester.send("lines", "first", partition=0)
        tester.run_until_done()
        tester.kill("lines", restart_after_s=5)
        for text in ("a", "b", "c"):
            tester.send("lines", text, partition=0, key="k")
        tester.cluster.topics["lines"].partitions[0].compact()
        tester.run_until_done()
        tester.run_for(10)
        assert counted(tester, "lost") == 0
        assert counted(tester, "absent") > 0
