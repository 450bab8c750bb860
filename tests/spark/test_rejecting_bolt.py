"""What a bolt rejects is a dead letter at once: real worker, acker and spout driver; the test plays Spark."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from starlette.testclient import TestClient

from acktree.acker.service import Acker
from acktree.console.main import main
from acktree.console.page.app import StatusPage
from acktree.console.page.serving.frame import PageSettings
from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.producers import BasicBolt, BatchBolt, Reject
from acktree.producers.worker.loop import Worker
from spark.spouts import DEADLINE_S, SpoutTester
from spark.test_failing_bolt import emit

pytestmark = pytest.mark.simulated

MANY, EVERY = 10_000, 100
"""Records, a megabyte of tuples; each hundredth is poison."""


class Refuses(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        if tup.value == b"record 1":
            raise Reject("no number")
        if tup.value == b"record 2":
            raise ValueError("this time")


class RefusesBatches(BatchBolt):
    """Raises at the first poison of a batch, before anything of it is acked."""

    def __init__(self) -> None:
        self.passed: list[int] = []

    def execute(self, tuples: Any, collector: Any) -> None:
        numbers = [int(tup.value.split()[1]) for tup in tuples]
        for number in numbers:
            if number % EVERY == 7:
                raise Reject(f"{number} is poison")
        self.passed += numbers


@contextmanager
def running(t: SpoutTester, bolt: Any) -> Iterator[None]:
    roles: list[Worker | Acker] = [Worker(t.bootstrap, t.name, bolt), Acker(t.bootstrap, t.name)]
    threads = [world.start_thread(role.run, "role") for role in roles]
    try:
        yield
    finally:
        for role in roles:
            role.stop()
        for thread in threads:
            thread.join(DEADLINE_S)


def causes(t: SpoutTester, count: int) -> dict[int, tuple[str, str, str]]:
    """Return attempts, cause and reason of so many dead letters, by offset; each record has one."""
    settings = {"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.look", "enable.partition.eof": True}
    consumer = make_consumer(settings)
    consumer.assign([TopicPartition(f"{t.name}.dead-letter", 0, 0)])
    found = {}
    *letters, end = consumer.consume(count + 1, DEADLINE_S)
    assert end.error() is not None
    for message in letters:
        headers = dict(message.headers() or [])
        about = tuple(str(headers[f"acktree-{name}"], "utf-8") for name in ("attempts", "cause", "reason"))
        found[int(headers["acktree-origin"].rpartition(b"/")[2])] = about
    consumer.close()
    assert len(found) == count
    return found  # type: ignore[return-value]


@pytest.mark.real
@pytest.mark.promise("one source record that always fails … that a bolt or stage rejects")
def test_a_rejected_record_is_immediately_a_dead_letter_listed_with_its_cause(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=4, max_attempts=5)
    with running(t, Refuses()):
        emit(t, t.emitted(t.next_batch()))
        t.until(lambda: t.count("rejected") == t.count("dead_lettered") == 1)
        t.until(lambda: t.count("failed") == 2 and t.pending == 1)
        t.until(lambda: t.committed() == 2)  # 0 is done, 1 is a dead letter, 2 waits for its back-off
    assert causes(t, 1) == {1: ("1", "REJECTED", "no number")}
    about = ["dead-letter", "list", "--topology", t.name, "-b", t.bootstrap]
    listed = CliRunner().invoke(main, about)
    assert listed.exit_code == 0, listed.output
    assert [line.split()[-4] for line in listed.output.splitlines()[-1:]] == ["REJECTED"], listed.output
    (found,) = json.loads(CliRunner().invoke(main, [*about, "--format", "json"]).stdout)["dead_letters"]
    assert (found["cause"], found["reason"], found["attempts"]) == ("REJECTED", "no number", 1)
    settings = PageSettings(t.bootstrap, t.name, {}, None, False)
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        assert "<td>rejected</td>" in client.get("/dead-letters").text
        assert "<dt>cause</dt><dd>rejected</dd>" in client.get("/dead-letters/0/0").text
        (found,) = client.get("/dead-letters.json").json()["dead_letters"]
    assert found["cause"] == "REJECTED"


def test_only_the_poison_fails_of_ten_thousand_records_in_batches_that_raise(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=MANY, max_pending=MANY, max_attempts=3)
    bolt = RefusesBatches()
    poison = {number for number in range(MANY) if number % EVERY == 7}
    with running(t, bolt):

        def emit_or_end() -> bool:
            emit(t, t.emitted(t.next_batch()), padding=b"." * 100)
            return t.committed() == MANY

        t.until(emit_or_end)
    assert causes(t, len(poison)) == {n: ("1", "REJECTED", f"{n} is poison") for n in poison}
    assert (t.count("failed"), t.count("timed_out"), t.count("rejected")) == (len(poison), 0, len(poison))
    assert sorted(set(bolt.passed)) == [number for number in range(MANY) if number not in poison]
