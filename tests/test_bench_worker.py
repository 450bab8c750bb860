"""The worker's benchmark measures what it says, on few records."""

import json

import pytest
from click.testing import CliRunner

from acktree.console.benches import worker_latency
from acktree.console.commands.bench import bench


@pytest.mark.slow
def test_every_kind_runs_and_is_measured(bootstrap: str):
    result = CliRunner().invoke(
        bench,
        ["worker", "-b", bootstrap, "--records", "500", "--rounds", "1", "--kinds", "plain,columns,async"],
    )
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()[3:]]
    assert [row[0] for row in rows] == ["plain", "columns", "async"]
    assert all(float(row[1]) > 0 for row in rows)


def test_the_figures_are_printed_as_json_lines(bootstrap: str):
    arguments = ["worker", "-b", bootstrap, "--records", "500", "--rounds", "1", "--kinds", "plain"]
    result = CliRunner().invoke(bench, [*arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    machine, plain = [json.loads(line) for line in result.stdout.splitlines()]
    assert machine["cores"] >= 1
    assert (plain["kind"], plain["records"]) == ("plain", 500)
    assert all(run["cpu_s_per_million"] > 0 and run["records_per_s"] > 0 for run in plain["runs"])


def test_an_unknown_kind_is_answered_with_the_existing_ones(bootstrap: str):
    result = CliRunner().invoke(bench, ["worker", "-b", bootstrap, "--kinds", "plain,none"])
    assert result.exit_code == 2
    assert "none: choose from plain-defaults, plain, basic" in result.output


@pytest.mark.slow
def test_each_record_of_the_latency_run_is_acked_after_it_was_due(bootstrap: str, monkeypatch):
    monkeypatch.setattr(worker_latency, "WARM_UP_S", 0.1)
    result = worker_latency.measure_latency(bootstrap, rate_per_s=200, seconds=0.5)
    assert (result.records, result.failed) == (100, 0)
    assert 0 < result.p50_ms <= result.p99_ms <= result.max_ms
