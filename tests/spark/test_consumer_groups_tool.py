"""Operators use Kafka's own kafka-consumer-groups, live or stopped: exactly what they ask for is replayed."""

import os
import subprocess
import time
from collections.abc import Callable
from functools import cache

import jgo
import pytest

import prerequisites
from acktree.console.devbroker.jars import KAFKA_VERSION
from acktree.console.devbroker.java import MissingJava, find_java
from deadlines import stretched
from spark.spouts import SpoutTester

pytestmark = pytest.mark.xdist_group("kafkas-own-tool")
"""In one process: two that fetch the tool's jars at once fail."""
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
RECORDS = 10


@cache
def command() -> tuple[str, ...]:
    """Return how the tool is called; its jars are kept in the local Maven repository."""
    try:
        jars = [
            artifact.resolve() for artifact in jgo.resolve(f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}")
        ]
        return (str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, jars)), TOOL)
    except (MissingJava, RuntimeError, OSError) as reason:
        prerequisites.give_up(f"no kafka-consumer-groups to test with: {reason}")


def consumer_groups(t: SpoutTester, *arguments: str) -> str:
    """Run kafka-consumer-groups for the spout's group and return what it printed."""
    group = ("--bootstrap-server", t.bootstrap, "--group", f"{t.name}.in")
    done = subprocess.run(
        [*command(), *group, *arguments], capture_output=True, text=True, timeout=stretched(240)
    )
    assert done.returncode == 0, done
    return done.stdout


def reset(t: SpoutTester, *how: str) -> None:
    printed = consumer_groups(t, "--reset-offsets", "--topic", f"{t.name}.source", *how, "--execute")
    assert f"{t.name}.source" in printed, printed


def finished(spout: Callable[..., SpoutTester]) -> tuple[SpoutTester, int]:
    """Return a spout whose records are all done, and a time in ms between its sixth and seventh record."""
    t = spout(records=0)
    between_ms = int(time.time() * 1000) - 60_000
    t.send(6, between_ms - 1_000)
    t.send(RECORDS - 6, between_ms + 1_000)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == RECORDS)
    return t, between_ms


@pytest.mark.promise("an operator rewinds a spout's group")
@pytest.mark.parametrize(
    ("how", "first", "live"),
    [
        pytest.param("--to-offset 4", 4, True, id="offset, live"),
        pytest.param("--shift-by -3", 7, False, id="shift, stopped", marks=pytest.mark.slow),
        pytest.param("--to-datetime", 6, True, id="datetime, live", marks=pytest.mark.slow),
    ],
)
def test_a_reset_backwards_replays_exactly_the_rewound_range(
    spout: Callable[..., SpoutTester], how: str, first: int, live: bool
) -> None:
    t, between_ms = finished(spout)
    if not live:
        t.driver.close()
    if how == "--to-datetime":
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between_ms / 1000))
        how += f" {stamp}.{between_ms % 1000:03d}+0000"
    reset(t, *how.split())
    if live:
        t.until(lambda: t.count("rewinds") == 1)
    else:
        t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(first, RECORDS))
    t.send_result(acked=again)
    t.until(lambda: t.committed() == RECORDS)


@pytest.mark.slow
def test_an_allowed_reset_forwards_skips_and_the_lag_is_the_records_not_done(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=RECORDS, options={"allowSkip": "true"})
    emitted = t.emitted(t.next_batch(limit=4))
    t.send_result(acked=emitted[:1])
    t.until(lambda: t.committed() == 1)
    assert lag(t) == RECORDS - 1
    reset(t, "--to-offset", "8")
    t.until(lambda: t.count("rewinds") == 1)
    rest = t.emitted(t.next_batch())
    assert [offset for offset, _ in rest] == [8, 9]
    t.send_result(acked=rest)
    t.until(lambda: t.committed() == RECORDS)
    assert lag(t) == 0


def lag(t: SpoutTester) -> int:
    """Return the LAG that the tool describes for the source partition."""
    rows = [line.split() for line in consumer_groups(t, "--describe").splitlines()]
    (head,) = [row for row in rows if "LAG" in row]
    (mine,) = [row for row in rows if f"{t.name}.source" in row]
    return int(mine[head.index("LAG")])
