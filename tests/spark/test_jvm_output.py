"""What a user sees on stderr of `acktree spark run`: what matters, and nothing of Java, Spark and py4j."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.console.spark_reports import refuse_spark
from acktree.core.kafka.clients import make_producer
from acktree.core.kafka.settings import producer_settings
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from deadlines import stretched

pytestmark = pytest.mark.spark

ACKTREE = Path(sys.executable).with_name("acktree")
WAIT_S = stretched(240)
NOTICE = "a line of the user's own function"
JOBS = f"""
import sys

def say(batches):
    for batch in batches:
        print({NOTICE!r}, file=sys.stderr, flush=True)
        yield batch

def words(lines):
    return lines.select("value", "anchors").mapInArrow(say, "value binary, anchors binary")
"""
TOPOLOGY = """
name = "{name}"
[spouts.lines]
topics = ["{name}.source"]
emits = ["{name}.words"]
[bolts.count]
reads = ["{name}.words"]
"""


BROKEN_PIPE = re.compile(r"^Traceback \(most recent call last\):\n(?: .*\n)+BrokenPipeError: .*\n", re.M)
"""What PySpark's own daemon prints on a slow machine: its JVM has ended before its workers."""


def said(log: str) -> list[str]:
    """Return the lines of a run's log."""
    return BROKEN_PIPE.sub("", log).splitlines()


def await_line(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.05)


def to_itself(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)


def to_its_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    os.killpg(process.pid, number)


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(to_itself, signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
        pytest.param(to_its_group, signal.SIGTERM, id="SIGTERM-to-the-group", marks=pytest.mark.slow),
        pytest.param(to_its_group, signal.SIGINT, id="Ctrl-C", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_has_printed_that_it_was_ready_and_the_users_output(
    bootstrap: str,
    unique: str,
    tmp_path: Path,
    send: Callable[[subprocess.Popen[bytes], signal.Signals], None],
    number: signal.Signals,
):
    source, log = f"{unique}.source", tmp_path / "log"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(source, 2)])[source].result()
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=unique)), {})
    producer = make_producer(producer_settings(bootstrap, {}))
    for record in range(1_000):
        producer.produce(source, b"a line", partition=record % 2)
    producer.flush()
    (tmp_path / "jobs.py").write_text(JOBS)
    command = [ACKTREE, "spark", "run", "jobs:words", "--topology", unique, "--spout", "lines"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "-b", bootstrap], stdout=out, stderr=out, cwd=tmp_path, start_new_session=True
        )
    try:
        await_line(log, NOTICE, process)
        send(process, number)
        assert process.wait(WAIT_S) == 0, log.read_text()
    finally:
        process.kill()
    ready, *others = said(log.read_text())
    assert ready.startswith(f"ready spout lines of topology {unique}, query ")
    assert set(others) == {NOTICE}
    refuse_spark(bootstrap, unique, "lines", {}, pytest.fail)  # a stage in Python may follow immediately
