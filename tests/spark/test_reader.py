"""The stream reader, asked by the test as Spark asks it."""

from collections.abc import Callable

import pytest

from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.spark.runtime.spark_version import ReadAllAvailable
from acktree.spark.source import AcktreeStreamReader
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated


def test_the_driver_that_planned_the_first_batch_runs_it(spout: Callable[..., SpoutTester]) -> None:
    """Spark asks for the initial offset to plan the first batch, and again to run it."""
    t = spout(records=10)
    reader = AcktreeStreamReader(t.options())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    term = t.spout_state().term
    assert PlannedBatch.from_json(end).records == 10
    assert reader.initialOffset() == start
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert t.spout_state().term == term, "another driver would have taken one of its own"
    reader.stop()


def test_a_driver_continues_after_a_first_batch_that_was_logged_before_a_crash(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10)
    crashed = AcktreeStreamReader(t.options())
    end = crashed.latestOffset(crashed.initialOffset(), ReadAllAvailable())
    reader = AcktreeStreamReader(t.options())
    reader.initialOffset()
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()
    crashed.stop()


def test_a_first_batch_without_records_that_was_logged_before_a_crash_reads_nothing(
    spout: Callable[..., SpoutTester],
) -> None:
    """The next driver has another position, if only by its run: what Spark has logged is no start of it."""
    t = spout(records=0)
    crashed = AcktreeStreamReader(t.options())
    end = crashed.latestOffset(crashed.initialOffset(), ReadAllAvailable())
    reader = AcktreeStreamReader(t.options())
    first = reader.initialOffset()
    assert first != end
    assert reader.partitions(first, end) == []
    reader.stop()
    crashed.stop()
