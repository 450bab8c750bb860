"""A slow link to a real broker: what does not pass fails alone, and everything else goes on."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt
from acktree.producers.stages.stage_worker import StageWorker
from acktree.producers.worker.loop import Worker
from deadlines import stretched
from proxy import proxy_of

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPOLOGY = """
name = "{name}"
ackers = 0
[spouts.split]
topics = ["{name}.lines"]
emits = ["{name}.words"]
max_attempts = 1
[bolts.repeat]
reads = ["{name}.words"]
emits = ["{name}.out"]
exactly_once = true
"""


class EmitsHalfMegabytes(BasicBolt):
    """Emits half a megabyte as often as a line says."""

    def execute(self, tup: Any, emit: Any) -> None:
        for _ in range(int(tup.value)):
            emit(b"x" * 500_000)


@pytest.fixture
def name(bootstrap: str, topology_name: str) -> str:
    """The name of a published topology; one line of its spout, and one tuple of its bolt, says 60."""
    name = topology_name
    admin = make_admin(bootstrap, {})
    topics = [NewTopic(f"{name}.{topic}", 2) for topic in ("lines", "words")]
    for future in admin.create_topics(topics).values():
        future.result()
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
    producer = make_producer({"bootstrap.servers": bootstrap})
    for topic in ("lines", "words"):
        for partition, line in [(0, "60"), *((number % 2, "1") for number in range(20))]:
            producer.produce(f"{name}.{topic}", line, partition=partition)
    producer.flush()
    return name


def run_behind_slow_link(bootstrap: str, make: Callable[[str], Any], group: str, topic: str) -> None:
    """Run what ``make`` returns for an address until its group has committed all of a topic."""
    consumer = make_consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [TopicPartition(topic, partition) for partition in range(2)]
    with proxy_of(bootstrap) as proxy:
        runner = make(proxy.bootstrap)
        proxy.bytes_per_s = 1_000_000
        thread = threading.Thread(target=runner.run)
        thread.start()
        try:
            until_s = time.monotonic() + stretched(120)
            while [place.offset for place in consumer.committed(places, timeout=10)] != [11, 10]:
                assert thread.is_alive()
                assert time.monotonic() < until_s
                time.sleep(0.5)
        finally:
            proxy.bytes_per_s = 1e9
            runner.stop()
            thread.join()
    consumer.close()


def test_output_of_a_stage_that_does_not_pass_fails_its_record_alone(bootstrap: str, name: str) -> None:
    make = partial(StageWorker, topology=name, stage=EmitsHalfMegabytes)
    run_behind_slow_link(bootstrap, make, f"{name}.split", f"{name}.lines")
    letters = make_consumer({"bootstrap.servers": bootstrap, "group.id": name})
    letters.assign([TopicPartition(f"{name}.dead-letter", 0, 0)])
    (letter,) = letters.consume(1, timeout=10)
    assert "its output of 30.0 MB did not pass within 10 s" in str(letter.headers())
    letters.close()


def test_output_of_a_worker_that_does_not_pass_fails_its_tuple_alone(
    bootstrap: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make = partial(Worker, topology=name, bolt=EmitsHalfMegabytes())
    run_behind_slow_link(bootstrap, make, f"{name}.repeat", f"{name}.words")
    assert "its output of 30.0 MB does not pass within 7 s" in caplog.text
