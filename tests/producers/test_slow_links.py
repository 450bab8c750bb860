"""A slow link to a real broker: what does not pass fails alone, and everything else goes on."""

import threading
import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt
from acktree.producers.stages.stage_worker import StageWorker
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
"""


class EmitsHalfMegabytes(BasicBolt):
    """Emits half a megabyte as often as a line says."""

    def execute(self, tup: Any, emit: Any) -> None:
        for _ in range(int(tup.value)):
            emit(b"x" * 500_000)


def test_output_that_does_not_pass_fails_its_record_alone(bootstrap: str, topology_name: str) -> None:
    name = topology_name
    admin = make_admin(bootstrap, {})
    for future in admin.create_topics([NewTopic(f"{name}.lines", 2)]).values():
        future.result()
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
    producer = make_producer({"bootstrap.servers": bootstrap})
    for partition, line in [(0, "60"), *((number % 2, "1") for number in range(20))]:
        producer.produce(f"{name}.lines", line, partition=partition)
    producer.flush()
    group = make_consumer({"bootstrap.servers": bootstrap, "group.id": f"{name}.split"})
    places = [TopicPartition(f"{name}.lines", partition) for partition in range(2)]
    with proxy_of(bootstrap) as proxy:
        stage = StageWorker(proxy.bootstrap, name, EmitsHalfMegabytes)
        proxy.bytes_per_s = 1_000_000
        thread = threading.Thread(target=stage.run)
        thread.start()
        try:
            until_s = time.monotonic() + stretched(120)
            while [place.offset for place in group.committed(places, timeout=10)] != [11, 10]:
                assert thread.is_alive()
                assert time.monotonic() < until_s
                time.sleep(0.5)
        finally:
            proxy.bytes_per_s = 1e9
            stage.stop()
            thread.join()
    letters = make_consumer({"bootstrap.servers": bootstrap, "group.id": name})
    letters.assign([TopicPartition(f"{name}.dead-letter", 0, 0)])
    (letter,) = letters.consume(1, timeout=10)
    assert "its output of 30.0 MB did not pass within 10 s" in str(letter.headers())
    group.close()
    letters.close()
