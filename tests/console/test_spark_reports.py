"""A stage in Python is refused while Spark's driver of its spout reports, and by nothing less."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from acktree.console import spark_reports
from acktree.console.spark_reports import RunBySpark, refuse_spark
from acktree.core import world
from acktree.core.errors import NotAuthorized
from acktree.core.kafka.clients import make_admin, make_producer
from acktree.core.reports.stats import DRIVER, ENGINE, SPARK, STARTING, STOPPED, Report
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

TOPOLOGY = """
name = "{name}"
[spouts.lines]
topics = ["{name}.lines"]
emits = ["{name}.words"]
tasks = 2
"""
IN_SPARK = {ENGINE: SPARK, "host": "vm1", "pid": 4711}
WHERE = (
    r"its driver, process 4711 on host vm1, last reported \d\.\d s ago; stop it first, or give --take-over"
)


class ReportedSpout:
    """A topology on a broker, and what processes report of its spout."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        admin = make_admin(bootstrap, {})
        admin.create_topics([NewTopic(f"{name}.lines", 2)])[f"{name}.lines"].result()
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
        self._producer = make_producer({"bootstrap.servers": bootstrap})

    def report(self, values: dict[str, Any], task: int = 0, role: str = "spout", of: str = "lines") -> None:
        report = Report(role, of, f"lines-{task}", world.wall_ms(), values)
        self.write(report.encode())

    def write(self, value: bytes) -> None:
        self._producer.produce(f"{self.name}.stats", value)
        assert self._producer.flush(10) == 0

    def refuse(self) -> None:
        """Refuse a stage. Raises RunBySpark."""
        refuse_spark(self.bootstrap, self.name, "lines", {}, pytest.fail)


@pytest.fixture
def spout(kafka: str, unique: str, simulation: Simulation | None) -> ReportedSpout:
    made: list[ReportedSpout] = []
    run_in(simulation, lambda: made.append(ReportedSpout(kafka, unique)))
    return made[0]


def test_a_recent_report_of_a_driver_in_spark_refuses_and_says_who_and_where(spout: ReportedSpout):
    spout.report(IN_SPARK, task=0)
    spout.report(IN_SPARK, task=1)
    with pytest.raises(RunBySpark, match=WHERE) as caught:
        spout.refuse()
    assert str(caught.value).startswith(f"Spark is running spout lines of topology {spout.name}: ")


def test_a_report_of_any_task_refuses(spout: ReportedSpout):
    spout.report({}, task=0)
    spout.report(IN_SPARK, task=1)
    with pytest.raises(RunBySpark):
        spout.refuse()


@pytest.mark.parametrize(
    "report",
    [
        lambda spout: None,
        lambda spout: spout.write(b"not a report"),
        lambda spout: spout.report({"host": "vm1", "pid": 4711}),
        lambda spout: spout.report({STARTING: 1}),
        lambda spout: spout.report(IN_SPARK, role="bolt"),
        lambda spout: spout.report(IN_SPARK, of="other"),
        lambda spout: spout.report({**IN_SPARK, ENGINE: "python"}),
    ],
    ids=["none", "garbage", "python", "starting", "bolt", "other spout", "other engine"],
)
def test_nothing_else_refuses(spout: ReportedSpout, report: Callable[[ReportedSpout], None]):
    report(spout)
    spout.refuse()


def test_a_driver_in_spark_that_has_stopped_cleanly_does_not_refuse(spout: ReportedSpout):
    spout.report(IN_SPARK)
    spout.report({**IN_SPARK, STOPPED: 1})
    spout.refuse()
    spout.report(IN_SPARK)
    with pytest.raises(RunBySpark):
        spout.refuse()
    spout.report({ENGINE: SPARK, STOPPED: 1}, role=DRIVER)
    spout.refuse()


def test_a_stage_that_has_taken_over_from_spark_may_start_again_immediately(spout: ReportedSpout):
    spout.report(IN_SPARK)
    spout.report({"host": "vm2", "pid": 12})
    spout.refuse()


@pytest.mark.parametrize("clock_ahead_s", [-3_600, 0, 3_600])
def test_a_report_is_as_old_as_the_broker_says(spout: ReportedSpout, monkeypatch, clock_ahead_s):
    wall_ms = world.wall_ms
    monkeypatch.setattr(spark_reports, "SILENT_AFTER_S", 2.0)
    monkeypatch.setattr(world, "wall_ms", lambda: wall_ms() + 1000 * clock_ahead_s)
    spout.report(IN_SPARK)
    with pytest.raises(RunBySpark):
        spout.refuse()
    world.sleep(2.5)
    spout.report({}, task=1)
    spout.refuse()


def test_a_driver_that_has_not_reported_lately_does_not_refuse(spout: ReportedSpout, monkeypatch):
    monkeypatch.setattr(spark_reports, "SILENT_AFTER_S", 1.0)
    spout.report(IN_SPARK)
    world.sleep(1.5)
    spout.refuse()


def test_without_the_right_to_read_reports_the_stage_starts(spout: ReportedSpout, monkeypatch):
    def forbid(*_: object) -> None:
        raise NotAuthorized("no right to read")

    monkeypatch.setattr(spark_reports, "_read", forbid)
    spout.report(IN_SPARK)
    warnings: list[str] = []
    refuse_spark(spout.bootstrap, spout.name, "lines", {}, warnings.append)
    assert warnings == ["cannot check whether Spark runs spout lines: no right to read"]


def test_the_driver_of_a_stage_in_python_does_not_refuse_the_next_one(spout: ReportedSpout):
    driver = SpoutDriver(SpoutOptions(spout.bootstrap, spout.name, "lines"))
    driver.open(None)
    driver.commit_and_report()
    spout.refuse()
    driver.close()


def test_reports_that_cannot_be_read_to_their_end_are_said_not_to_be_known(spout: ReportedSpout):
    settings = {"bootstrap.servers": spout.bootstrap, "transactional.id": f"{spout.name}-other"}
    stranger = make_producer(settings)
    stranger.init_transactions(10)
    stranger.begin_transaction()
    stranger.produce(f"{spout.name}.stats", b"hides what follows")
    assert stranger.flush(10) == 0
    spout.report(IN_SPARK)
    warnings: list[object] = []
    refuse_spark(spout.bootstrap, spout.name, "lines", {}, warnings.append)
    assert "cannot check whether Spark runs spout lines" in str(warnings)
    stranger.abort_transaction(10)
