"""A component in Spark reports from its start on, long before its driver can."""

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.core.reports.stats import STARTING, STATS_INTERVAL_S, Report, decode_report
from acktree.core.topology.file import stats_topic
from acktree.producers.spouts.driver.reports.reporter import reports_of_start
from acktree.spark.driver.spark_spout import SparkSpoutDriver
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated


def read_reports(t: SpoutTester) -> list[Report]:
    """Return all reports of a topology."""
    reader = make_consumer(
        {"bootstrap.servers": t.bootstrap, "group.id": t.name, "enable.partition.eof": True}
    )
    reader.assign([TopicPartition(stats_topic(t.name), 0, 0)])
    reports = []
    while not (message := reader.poll(30)).error():
        reports.append(decode_report(message.value()))
    reader.close()
    return reports


def test_a_starting_component_says_so_every_few_seconds_until_it_has_started(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0)
    topic = stats_topic(t.name)
    with reports_of_start(t.options(), topic):
        world.sleep(2.5 * STATS_INTERVAL_S)
    world.sleep(2 * STATS_INTERVAL_S)
    starting = [each for each in read_reports(t) if STARTING in each.values]
    assert [(each.role, each.component) for each in starting] == 3 * [("spout", "in")]
    assert {each.instance for each in starting} == {f"in@{world.process_name()}"}


def test_the_driver_of_a_spout_in_spark_names_spark_and_says_when_it_stops(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0)
    driver = SparkSpoutDriver(t.options())
    driver.open(None)
    driver.service(0.1)
    driver.close()
    reported = [(each.values["engine"], each.values.get("stopped")) for each in read_reports(t)[-2:]]
    assert reported == [("spark", None), ("spark", 1)]
