"""A dead letter is its source record unchanged: what the console lists and replays is what was written."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner
from starlette.testclient import TestClient

from acktree.console.main import main
from acktree.console.page.app import StatusPage
from acktree.console.page.serving.frame import PageSettings
from acktree.spark.tasks.reading.read_task import read_offsets, read_tasks
from acktree.wire.control_records import Cause
from spark.spouts import SpoutTester
from unreadable_headers import write_with_bad_name

WITH_NULLS = [("null", None), ("empty", b""), ("acktree-note", None), ("text", b"yes")]


def dead_letter(t: SpoutTester, *about: str) -> str:
    done = CliRunner().invoke(main, ["dead-letter", *about, "--topology", t.name, "-b", t.bootstrap])
    assert done.exit_code == 0, done.output
    return done.output


def replayed_row(t: SpoutTester) -> dict[str, Any]:
    """Replay the only dead letter, and return the row that Spark reads of its source record."""
    dead_letter(t, "replay", "0/0", "--execute")
    t.until(lambda: t.count("commands") == 1)
    batch = t.next_batch()
    assert batch is not None
    reading = read_tasks(t.options(includeHeaders="true"), t.driver.topology, batch)
    (row,) = [row for task in reading for rows in read_offsets(task) for row in rows.to_pylist()]
    assert isinstance(row, dict)
    return row


def test_a_header_without_a_value_stays_null_when_listed_shown_and_replayed(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0, max_attempts=1)
    t.producer.produce(f"{t.name}.source", b"poison", headers=WITH_NULLS)
    t.producer.flush()
    (emitted,) = t.emitted(t.next_batch())
    t.send_result(failed=[(*emitted, Cause.FAILED)])
    t.until(lambda: t.count("dead_lettered") == 1)

    (listed,) = json.loads(dead_letter(t, "list", "--format", "json"))["dead_letters"]
    assert {name: listed["headers"][name] for name, _ in WITH_NULLS} == {
        "null": None,
        "empty": "",
        "acktree-note": None,
        "text": "yes",
    }
    shown = dead_letter(t, "show", "0/0").splitlines()
    assert [line for line in shown if line.startswith("header null")] == ["header null      none"]
    settings = PageSettings(f"{t.bootstrap}", t.name, {}, None, False)
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        assert '<dt>header null</dt><dd class="mono">none</dd>' in client.get("/dead-letters/0/0").text

    row = replayed_row(t)
    assert row["value"] == b"poison"
    assert [(header["key"], header["value"]) for header in row["headers"]] == WITH_NULLS


def test_a_source_record_with_unreadable_headers_is_read_given_up_and_replayed(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=0, max_attempts=1)
    write_with_bad_name(t.bootstrap, f"{t.name}.source", b"poison", text=b"yes")
    (emitted,) = t.emitted(t.next_batch())
    t.send_result(failed=[(*emitted, Cause.FAILED)])
    t.until(lambda: t.count("dead_lettered") == 1)

    (listed,) = json.loads(dead_letter(t, "list", "--format", "json"))["dead_letters"]
    assert (listed["value"], listed["source_offset"]) == ("poison", 0)
    assert "not UTF-8" in listed["headers"]["acktree-headers-note"]

    row = replayed_row(t)
    assert (row["value"], row["headers"]) == (b"poison", None)
