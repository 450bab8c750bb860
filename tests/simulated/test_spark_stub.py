"""The stand-in for Spark: retried tasks, twins, lost executors, shuffles."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from acktree.console.spark_reports import RunBySpark, refuse_spark
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt
from acktree.spark.runtime.task_context import SIMULATED_TASK
from acktree.testing import TopologyTester
from acktree.testing.parts import BOOTSTRAP
from acktree.testing.spark.spark_stub import SparkApplication
from acktree.testing.virtual.kernel import Process
from acktree.wire.control_records import Cause

TOPOLOGY = """
name = "t"
[spouts.lines]
topics = ["lines"]
emits = ["words"]
retry_initial_s = 0.1
[bolts.keep]
reads = ["words"]
"""
TWO_TOPICS = TOPOLOGY.replace('emits = ["words"]', 'emits = ["words", "lengths"]').replace(
    'reads = ["words"]', 'reads = ["words", "lengths"]'
)
WORDS = [f"word{number}" for number in range(10)]


class Swallow(BasicBolt):
    def execute(self, tup, emit):
        pass


def words(row: Any) -> list[bytes]:
    return row.value.split()


def words_and_lengths(row: Any) -> list[dict[str, Any]]:
    lengths = [{"topic": "lengths", "value": str(len(word))} for word in row.value.split()]
    return [*({"topic": "words", "value": word} for word in row.value.split()), *lengths]


def with_words(topology: str = TOPOLOGY, stage: Callable[..., Any] = words, **more: Any) -> TopologyTester:
    return TopologyTester(parse_topology(topology), stages={"lines": stage}, bolts={"keep": Swallow}, **more)


def application(tester: TopologyTester) -> SparkApplication:
    found = tester._services.of("lines")[0].runner
    assert isinstance(found, SparkApplication)
    return found


def at(
    tester: TopologyTester, call: str, strike: Callable[[Process], None], times: int = 1, after: str = ""
) -> Counter[str]:
    """Call ``strike`` at the next calls of a name, in the process that makes them; return how often.

    Each time only once another call, ``after``, was made.
    """
    before, struck = tester.kernel.on_call, Counter[str]()
    is_due = not after

    def on_call(process: Process, name: str) -> None:
        nonlocal is_due
        before(process, name)
        is_due = is_due or name == after
        if name == call and struck[call] < times and is_due:
            struck[call] += 1
            is_due = not after
            strike(process)

    tester.kernel.on_call = on_call
    return struck


def send_all(tester: TopologyTester) -> None:
    for word in WORDS:
        tester.send("lines", word)


def fail(_process: Process) -> None:
    raise OSError("the task fails")


PLACES = ["spark.read", "spark.read_end", "spark.write", "spark.write_end"]


@pytest.mark.parametrize("place", [*PLACES, "producer.commit_transaction"])
def test_a_task_that_fails_is_run_again_and_writes_once(place: str):
    """The writer of a failed attempt, while it lives, may fence the next attempt, which then fails, too."""
    with with_words() as tester:
        is_in_task = place in PLACES
        struck = at(tester, place, fail, times=2, after="" if is_in_task else "spark.write")
        send_all(tester)
        tester.run_until_done()
        assert struck[place] == 2
        assert sorted(tester.values("words")) == sorted(WORDS)
        assert tester.replays("lines") == {}


def test_a_task_that_fails_four_times_fails_the_query():
    with with_words() as tester:
        at(tester, "spark.write", fail, times=4)
        send_all(tester)
        with pytest.raises(OSError, match="the task fails"):
            tester.run_until_done()


@pytest.mark.parametrize("place", [*PLACES, "producer.commit_transaction", "producer.init_transactions"])
def test_a_python_process_that_dies_in_a_task_costs_one_attempt(place: str):
    with with_words() as tester:
        struck = at(
            tester, place, lambda process: tester.kernel.kill(process) if "." in process.name else None
        )
        send_all(tester)
        tester.run_until_done()
        assert struck[place] == 1
        assert sorted(tester.values("words")) == sorted(WORDS)


@pytest.mark.parametrize("place", PLACES)
def test_a_lost_executor_is_replaced_and_its_tasks_run_elsewhere(place: str):
    with with_words() as tester:

        def lose(process: Process) -> None:
            executors = application(tester).executors
            (mine,) = (each for each in executors.all if process in each.all)
            executors.lose(mine)

        at(tester, place, lose)
        send_all(tester)
        tester.run_until_done()
        assert sorted(tester.values("words")) == sorted(WORDS)
        tester.run_for(2)
        assert len(application(tester).executors.all) == 2


def test_a_speculative_twin_writes_nothing_twice():
    with with_words() as tester:
        twins: list[int] = []

        def speculates(attempt: Any) -> bool:
            twins.append(attempt.id)
            return True

        application(tester).executors.speculates = speculates
        for _ in range(10):
            send_all(tester)
            tester.run_for(0.2)
        tester.run_until_done()
        assert twins
        assert sorted(tester.values("words")) == sorted(WORDS * 10)
        assert tester.replays("lines") == {}


def test_executors_that_outlive_their_driver_are_fenced():
    with with_words() as tester:
        application(tester).executors.outlive_driver_s = lambda: 30.0
        service = tester._services.of("lines")[0]

        def kill_driver(_process: Process) -> None:
            tester.kernel.call_after(0.0, lambda: tester.kernel.kill(service.process))

        at(tester, "spark.write", kill_driver)
        send_all(tester)
        tester.run_until_done()
        tester.run_for(60)
        assert sorted(tester.values("words")) == sorted(WORDS)


DRIVER_STEPS = [
    "spark.latest_offset",
    "spark.log_offset",
    "spark.partitions",
    "spark.stage",
    "spark.log_commit",
]


@pytest.mark.parametrize("step", DRIVER_STEPS)
def test_a_driver_killed_at_any_step_continues_from_its_checkpoint(step: str):
    with with_words() as tester:
        send_all(tester)
        struck = at(tester, step, tester.kernel.kill)
        tester.run_until_done()
        assert struck[step] == 1
        assert tester._services.of("lines")[0].starts == 2
        assert sorted(tester.values("words")) == sorted(WORDS)
        assert tester.replays("lines") == {}


def test_a_batch_that_is_written_and_not_committed_is_run_again_and_skipped():
    with with_words() as tester:
        send_all(tester)
        at(tester, "spark.log_commit", tester.kernel.kill)
        stages = at(tester, "spark.stage", lambda _process: None, times=100)
        tester.run_until_done()
        assert stages["spark.stage"] >= 2
        assert sorted(tester.values("words")) == sorted(WORDS)


def test_a_stage_with_two_topics_shuffles_and_acks_every_tree():
    with with_words(TWO_TOPICS, words_and_lengths) as tester:
        send_all(tester)
        tester.run_until_done()
        assert sorted(tester.values("words")) == sorted(WORDS)
        assert tester.values("lengths") == ["5"] * 10
        assert tester.replays("lines") == {}


@pytest.mark.parametrize("place", ["spark.read", "spark.write", "spark.write_end"])
def test_a_shuffled_batch_whose_task_ran_twice_is_failed_and_replayed(place: str):
    with with_words(TWO_TOPICS, words_and_lengths) as tester:
        failed: list[Process] = []

        def fail_the_words(process: Process) -> None:
            if process.state[SIMULATED_TASK].partitionId() == 1 and not failed:
                failed.append(process)
                fail(process)

        at(tester, place, fail_the_words, times=9)
        tester.pause("keep", 5)  # a tree that is acked before the fail arrives is done
        send_all(tester)
        tester.run_until_done()
        assert {failed.cause for failed in tester.failures("lines")} == {Cause.FAILED}
        assert set(tester.values("words")) == set(WORDS)
        assert set(tester.replays("lines").values()) == {1}


def test_without_transactions_a_batch_cut_off_is_failed_and_replayed():
    with with_words(options={"lines": {"transactions": "false"}}) as tester:
        send_all(tester)
        at(tester, "spark.log_commit", tester.kernel.kill)
        tester.pause("keep", 5)
        tester.run_until_done()
        assert set(tester.values("words")) == set(WORDS)
        assert set(tester.replays("lines").values()) == {1}


def test_a_slow_batch_of_a_bolt_asks_for_more_time():
    topology = TOPOLOGY.replace('reads = ["words"]', 'reads = ["words"]\nemits = ["out"]')

    def copy(row):
        return [row.value]

    with TopologyTester(parse_topology(topology), stages={"lines": words, "keep": copy}) as tester:

        def slow(process: Process) -> None:
            if process.name.startswith("keep-0."):
                tester.kernel.sleep(70)

        at(tester, "spark.write", slow, times=20)
        send_all(tester)
        tester.run_until_done()
        assert tester.failures("lines") == []
        assert sorted(tester.values("out")) == sorted(WORDS)


def test_an_executor_that_hangs_is_given_up_and_comes_back_as_a_zombie():
    with with_words() as tester:

        def hang(process: Process) -> None:
            tester.kernel.stop(process, 400)
            tester.kernel.sleep(0.01)

        at(tester, "producer.commit_transaction", lambda p: hang(p) if "writer" in p.name else None, times=3)
        send_all(tester)
        tester.run_until_done()
        tester.run_for(500)
        assert set(tester.values("words")) == set(WORDS)
        assert tester.pending() == 0


def test_blocks_and_small_batches_also_work():
    topology = TOPOLOGY.replace('emits = ["words"]', 'emits = ["words"]\nblock = 4')
    with with_words(topology, options={"lines": {"maxOffsetsPerTrigger": "3"}}, partitions=1) as tester:
        send_all(tester)
        tester.run_until_done()
        assert sorted(tester.values("words")) == sorted(WORDS)
        assert len(tester.acked("lines")) == 10


def test_a_row_at_the_limit_of_its_topic_is_sent_without_a_trace_that_does_not_fit():
    """Whoever writes source records chooses their traces, and none of them may end the query."""
    trace = [("traceparent", b"00-%032x-%016x-01" % (5, 6)), ("tracestate", b"a=" + b"x" * 500)]
    sizes = {b"small": 10, b"large": 1_048_588 - 200 - 60}
    with with_words(stage=lambda row: [b"." * sizes[row.value]]) as tester:
        for value in sizes:
            tester.send("lines", value, headers=trace)
        tester.run_until_done()
        written = {len(record.value or b""): dict(record.headers) for record in tester.records("words")}
        assert written.keys() == set(sizes.values())
        assert written[sizes[b"small"]]["tracestate"] == trace[1][1]
        assert written[sizes[b"large"]] == {}
        assert tester.dead_letters() == []


@pytest.mark.parametrize("skew_s", [-1_000.0, 0.0, 1_000.0], ids=["behind", "right", "ahead"])
def test_a_stage_in_python_is_refused_while_spark_runs_its_spout_by_broker_time(skew_s: float):
    def start() -> None:
        tester._as_operator(lambda: refuse_spark(BOOTSTRAP, "t", "lines", {}, pytest.fail))

    with with_words() as tester:
        tester.step_clock("broker", skew_s)
        tester.run_for(10.0)
        with pytest.raises(RunBySpark, match=r"last reported [01]\."):
            start()
        tester.kill("lines", restart_after_s=None)
        tester.run_for(10.0)
        with pytest.raises(RunBySpark, match=r"last reported 1[0-2]\."):
            start()
        tester.run_for(15.0)
        start()
