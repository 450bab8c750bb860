"""Breakers of spouts in Spark and in Python: a bolt that fails everything makes no dead letters."""

from typing import Any

import pytest

from acktree.console.breaker import NoBreaker, execute_close, plan_close
from acktree.console.commands.watching.describe import in_text
from acktree.console.flow import NoSuchSpout, draining
from acktree.console.view.report_log import REPORTS_SPAN_S, read_reports
from acktree.console.view.reports import Reports
from acktree.console.view.snapshot import read_with_reports
from acktree.console.view.status import make_status
from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.core.topology.flow import Flow
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import Published
from acktree.producers import BasicBolt, Reject, RetryLater
from acktree.producers.spouts.driver import spout_driver
from acktree.testing import TopologyTester
from console_queries import look
from offering_spout import Offers

TEXT = """
name = "t"
message_timeout_s = 10
[spouts.source]
topics = ["lines"]
emits = ["a"]
max_attempts = 1
retry_initial_s = 1
retry_max_s = 8
max_consecutive_failures = 5
failure_window_s = 20
[bolts.store]
reads = ["a"]
"""
BY_RATIO = TEXT.replace("max_consecutive_failures = 5", "max_failure_ratio = 0.5\nfailure_min_results = 5")


class BadDeploy(BasicBolt):
    """Fails everything, with what it is given, while it is bad; some values for ever."""

    error: Exception | None = ValueError("bad deploy")
    poison = b"poison"

    def __init__(self) -> None:
        self.seen: list[tuple[float, bytes]] = []

    def execute(self, tup, emit):
        self.seen.append((world.monotonic_s(), tup.value))
        if tup.value == self.poison:
            raise Reject("poison")
        if self.error is not None:
            raise self.error.with_traceback(None)  # else it grows each time, and is logged


class BreakerSystem:
    """A topology of one kind of spout, with a bolt that is bad at first."""

    def __init__(self, kind: str, text: str, bolt: BadDeploy) -> None:
        self.is_spark, self.bolt, self.spout = kind == "spark", bolt, Offers()
        text = text if self.is_spark else text.replace('topics = ["lines"]\n', "")
        more: dict[str, Any] = (
            {"stages": {"source": lambda row: [row.value]}}
            if self.is_spark
            else {"spouts": {"source": self.spout}}
        )
        topology = parse_topology(text)
        self.tester = TopologyTester(topology, bolts={"store": bolt}, ackers=1, partitions=2, **more)

    def send(self, *values: str) -> None:
        if self.is_spark:
            for value in values:
                self.tester.send("lines", value)
        else:
            self.spout.waiting += values

    @property
    def done(self) -> int:
        return len(self.tester.acked("source"))

    def breaker(self) -> Any:
        return self.tester.service("source-0").runner.breaker

    def executed_between(self, start_s: float, end_s: float) -> int:
        return sum(start_s <= at_s < end_s for at_s, _ in self.bolt.seen)


@pytest.fixture(params=["spark", "python"])
def system(request):
    """Make a system, whose tester is closed in the end."""
    made: list[BreakerSystem] = []

    def make(text: str = TEXT, bolt: BadDeploy | None = None) -> BreakerSystem:
        made.append(BreakerSystem(request.param, text, bolt or BadDeploy()))
        made[0].tester.__enter__()
        return made[0]

    yield make
    made[0].tester.__exit__(None, None, None)


def values(count: int) -> list[str]:
    return [f"value {number}" for number in range(count)]


def status_of(tester):
    return look(tester, lambda cluster: make_status(*read_with_reports(cluster)))


def test_describe_says_that_it_is_open_since_when_and_why_and_an_operator_closes_it(system):
    it = system()
    it.send(*values(30))
    it.tester.run_for(120)
    status = status_of(it.tester)
    (spout,) = status.spouts
    since_s = it.breaker().opening.at_s
    assert spout.breaker.state == "open"
    assert abs(it.tester.now_s - since_s - (status.time_ms - spout.breaker.since_ms) / 1000) < 3
    assert spout.breaker.why == "5 failures in a row"
    assert (spout.breaker.task.partition("@")[0], spout.breaker.reason) == ("store", "ValueError: bad deploy")
    assert "open-breaker" in [each.kind for each in status.stuck]
    text = in_text(status)
    assert "breaker of spout source: open since" in text
    assert "store@" in text

    written = it.tester.set_flow("source", Flow.DRAINING)
    it.tester.run_for(10)

    def how_far(cluster):
        reports = Reports()
        read_reports(cluster, reports, REPORTS_SPAN_S)
        return list(draining(reports, it.tester.published, written, world.wall_ms()))

    (found,) = look(it.tester, how_far)
    assert not found.is_drained
    assert "its breaker is open, so this cannot end until it closes: 5 failures in a row" in found.line()
    it.tester.set_flow("source", Flow.RUNNING)

    openings, plan = it.breaker().openings, plan_close(it.tester.published, None, {"source": spout.breaker})
    assert "its breaker is open (5 failures in a row; store@" in plan.lines()[0]
    it.tester._as_operator(lambda: execute_close("simulated", plan, it.tester.published, {}))
    it.tester.run_until(lambda: it.breaker().openings > openings, 20)
    assert it.tester.dead_letters() == []
    it.bolt.error = None
    it.tester._as_operator(lambda: execute_close("simulated", plan, it.tester.published, {}))
    it.tester.run_until_done()
    assert (it.done, it.tester.dead_letters()) == (30, [])
    it.tester.run_for(5)
    assert status_of(it.tester).spouts[0].breaker.state == "closed"


def test_a_close_from_before_a_process_began_closes_nothing_in_it(system):
    it = system()
    it.tester.run_for(5)
    plan = plan_close(it.tester.published, "source", {})
    it.tester._as_operator(lambda: execute_close("simulated", plan, it.tester.published, {}))
    it.tester.kill("source")
    it.send(*values(10))
    it.tester.run_for(30)
    assert (it.breaker().is_open, it.breaker().openings) == (True, 1)


def test_a_plan_to_close_names_only_spouts_that_have_a_breaker():
    published = Published(
        **parse_topology(TEXT.replace("max_consecutive_failures = 5", "")).model_dump(),
        version=1,
        spout_tasks={},
        slots=(),
    )
    with pytest.raises(NoBreaker, match="spout source of topology t has no breaker: set max_failure_ratio"):
        plan_close(published, None, {})
    with pytest.raises(NoSuchSpout):
        plan_close(published, "nobody", {})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(ValueError("bad deploy"), BY_RATIO, id="raises-ratio"),
        pytest.param(Reject("bad deploy"), TEXT, id="rejects-in-a-row"),
        pytest.param(ValueError("bad deploy"), TEXT, id="raises-in-a-row", marks=pytest.mark.slow),
        pytest.param(Reject("bad deploy"), BY_RATIO, id="rejects-ratio", marks=pytest.mark.slow),
    ],
)
def test_a_bolt_that_fails_everything_makes_no_dead_letter_and_gets_a_few_probes(system, text, error):
    it = system(text)
    it.bolt.error = error
    it.send(*values(60))
    it.tester.run_for(100)
    assert it.breaker().is_open
    assert it.breaker().opening.reason.endswith("bad deploy")
    assert it.breaker().opening.task.startswith("store@")
    assert it.executed_between(it.tester.now_s - 60, it.tester.now_s) <= 20
    assert it.tester.dead_letters() == []
    it.bolt.error = None
    it.tester.run_for(20)
    assert not it.breaker().is_open
    it.tester.run_until_done()
    assert (it.done, it.tester.dead_letters()) == (60, [])


def test_the_only_rejected_record_becomes_a_dead_letter_when_the_window_is_over(system):
    it = system()
    it.bolt.error = None
    it.send(*values(5), "poison")
    it.tester.run_for(19)
    assert it.tester.dead_letters() == []
    it.tester.run_for(15)
    (found,) = it.tester.dead_letters()
    assert (found.value, found.reason, found.cause, found.attempts) == ("poison", "poison", "REJECTED", 1)
    it.tester.run_until_done()
    assert it.done == 5
    assert it.breaker().openings == 0


@pytest.mark.parametrize("system", ["spark"], indirect=True)
def test_once_it_is_closed_failed_records_come_before_new_ones(system, monkeypatch):
    monkeypatch.setattr(spout_driver, "MAX_REPLAYS", 10)
    it = system()
    it.send(*values(60))
    it.tester.run_for(30)
    it.send(*(f"new {number}" for number in range(100)))
    it.tester.run_for(30)
    it.bolt.error = None
    it.tester.run_until(lambda: not it.breaker().is_open, 60)
    before = len(it.bolt.seen)
    it.tester.run_until_done()
    failed = {value for _, value in it.bolt.seen[:before]}
    after = [value for _, value in it.bolt.seen[before:]]
    assert len(failed) > 50
    assert failed.issuperset(after[:50])


class Later(BadDeploy):
    """Says of one value when it is tried again."""

    delayed = 0

    def execute(self, tup, emit):
        if tup.value == b"value 0" and self.error is not None:
            self.delayed += 1
            raise RetryLater(600, "later")
        super().execute(tup, emit)


@pytest.mark.parametrize(("bolt", "waiting"), [(BadDeploy, 0), (Later, 1)])
def test_once_it_is_closed_only_records_delayed_by_a_bolt_still_wait(system, bolt, waiting):
    text = TEXT.replace("max_attempts = 1", "max_attempts = 1000").replace("failures = 5", "failures = 20")
    it = system(text.replace("retry_max_s = 8", "retry_max_s = 600"), bolt())
    it.send(*values(4))
    it.tester.run_until(lambda: len(it.bolt.seen) >= 18, 400)
    it.tester.run_until(lambda: it.breaker().is_open, 400)
    it.bolt.error = None
    plan = plan_close(it.tester.published, "source", {})
    it.tester._as_operator(lambda: execute_close("simulated", plan, it.tester.published, {}))
    it.tester.run_for(8)
    assert (it.done, it.breaker().is_open) == (4 - waiting, False)
    it.tester.run_for(600)
    assert (it.done, it.tester.dead_letters()) == (4, [])


def test_records_about_to_be_given_up_when_it_opens_are_emitted_again(system):
    it = system(TEXT.replace("failures = 5", "failures = 8"))
    it.send(*values(4))
    it.tester.run_for(10)
    assert not it.breaker().is_open
    it.send(*values(9)[4:])
    it.tester.run_for(60)
    assert it.breaker().is_open
    it.bolt.error = None
    it.tester.run_until_done()
    assert (it.done, it.tester.dead_letters()) == (9, [])


def test_records_emitted_again_when_it_opens_wait_for_the_delay_of_their_bolt(system):
    it = system(TEXT.replace("failures = 5", "failures = 8"), Later())
    it.send(*values(4))
    it.tester.run_for(10)
    it.send(*values(9)[4:])
    it.tester.run_for(60)
    assert (it.breaker().is_open, it.bolt.delayed) == (True, 1)
    it.bolt.error = None
    it.tester.run_for(500)
    assert (it.done, it.breaker().is_open) == (8, False)
    it.tester.run_for(60)
    assert (it.done, it.tester.dead_letters()) == (9, [])


def test_a_new_process_of_the_spout_gives_up_nothing_that_waited_in_the_old_one(system):
    it = system()
    it.send(*values(30))
    for _ in range(4):
        it.tester.run_for(25)
        it.tester.kill("source")
        if not it.is_spark:
            it.spout.waiting = [each for each in values(30) if each not in it.spout.acked]
    it.tester.run_for(25)
    assert it.tester.dead_letters() == []
    assert it.breaker().is_open
    it.bolt.error = None
    it.tester.run_until_done()
    assert (it.done, it.tester.dead_letters()) == (30, [])


def test_a_pause_stops_probes_and_a_drain_waits_for_them(system):
    it = system()
    it.send(*values(30))
    it.tester.run_for(30)
    it.tester.set_flow("source", Flow.PAUSED)
    it.tester.run_for(10)
    it.tester.run_for(60)
    assert it.executed_between(it.tester.now_s - 60, it.tester.now_s) == 0
    it.tester.set_flow("source", Flow.DRAINING)
    it.tester.run_for(60)
    assert it.tester.pending("source") >= 5
    it.send("new")
    it.tester.run_for(60)
    assert b"new" not in {value for _, value in it.bolt.seen}
    it.bolt.error = None
    it.tester.run_for(60)
    assert it.done > 0
    it.tester.set_flow("source", Flow.RUNNING)
    it.tester.run_until_done()
    assert (it.done, it.tester.dead_letters()) == (31, [])


def test_one_that_is_switched_off_lets_records_be_given_up_again(system):
    it = system()
    it.send(*values(10))
    it.tester.run_for(60)
    text = TEXT.replace("max_consecutive_failures = 5", "")
    if not it.is_spark:
        text = text.replace('topics = ["lines"]\n', "")
    it.tester._as_operator(lambda: apply_topology("simulated", parse_topology(text), {}))
    it.tester.run_until_done()
    assert (len(it.tester.dead_letters()), it.breaker().is_open) == (10, False)


def test_a_timeout_counts_as_a_failure(system):
    it = system(TEXT.replace("max_attempts = 1", "max_attempts = 3"))
    it.bolt.error = None
    it.tester.run_for(5)
    it.tester.lose("ack", times=2)
    it.send(*values(20))
    it.tester.run_until(lambda: it.breaker() is not None and it.breaker().is_open, 120)
    assert it.breaker().opening.reason == "timed out"
    it.tester.run_until_done()
    assert (it.done, it.tester.dead_letters()) == (20, [])
