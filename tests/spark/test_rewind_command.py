"""`acktree rewind`: what it plans, what it commits, and that a driver obeys it."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from acktree.console.main import main
from acktree.console.rewind import NotRewindable, RewoundPartition, places_of, plan_rewind
from console.test_page import published
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated


def rewind(t: SpoutTester, *more: str) -> Any:
    arguments = ["rewind", t.name, "--spout", "in", *more, "-b", t.bootstrap]
    return CliRunner().invoke(main, arguments)


def all_done(spout: Callable[..., SpoutTester]) -> SpoutTester:
    t = spout(records=5)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 5)
    return t


@pytest.mark.parametrize(
    ("target", "emitted"), [("earliest", [0, 1, 2, 3, 4]), ("3", [3, 4]), ("2h", [0, 1, 2, 3, 4])]
)
def test_a_running_driver_emits_rewound_records_again(
    spout: Callable[..., SpoutTester], target: str, emitted: list[int]
) -> None:
    t = all_done(spout)
    planned = rewind(t, "--to", target)
    assert (planned.exit_code, t.committed()) == (0, 5)
    assert f"will go back from 5 to {emitted[0]}" in planned.output
    assert "nothing was changed" in planned.output
    done = rewind(t, "--to", target, "--execute")
    assert done.exit_code == 0, done.output
    t.until(lambda: t.count("rewinds") == 1)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == emitted


def test_a_spout_is_never_set_forward(spout: Callable[..., SpoutTester]) -> None:
    t = all_done(spout)
    for target in ("5", "9", "2999-01-01"):
        refused = rewind(t, "--to", target, "--execute")
        assert (refused.exit_code, "stays at 5" in refused.output) == (2, True), refused.output
    assert t.committed() == 5
    for wrong in (["--to", "soon"], ["--to", "1", "--partition", "x"], ["--to", "1", "--partition", "x/1"]):
        assert rewind(t, *wrong).exit_code == 2


def test_each_partition_is_rewound_separately() -> None:
    lines = [("lines", partition) for partition in range(4)]
    targets, frontiers = dict.fromkeys(lines, 10), {lines[0]: 30, lines[1]: 8, lines[2]: 30}
    plan = plan_rewind(published(), "lines", targets, {lines[2]: 20}, frontiers)
    assert plan.partitions == (RewoundPartition("lines", 0, 30, 10), RewoundPartition("lines", 2, 30, 20))
    assert plan.notes == (
        "lines/1 stays at 8, which is not above 10",
        "lines/2 begins at 20: older records are gone",
        "lines/3 is not read yet",
    )


def test_a_spout_without_topics_or_of_another_name_is_refused() -> None:
    with pytest.raises(NotRewindable, match="fed by Python"):
        places_of(published(topic=""), "lines", [])
    with pytest.raises(NotRewindable, match="must be one of: lines"):
        places_of(published(), "words", [])
    with pytest.raises(NotRewindable, match="it reads: lines/0"):
        places_of(published(), "lines", [("lines", 1)])
    assert places_of(published(), "lines", []) == [("lines", 0)]
