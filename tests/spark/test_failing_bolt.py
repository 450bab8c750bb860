"""From an exception in a Python bolt to the dead letter, over a real worker, acker and spout driver.

The test plays Spark: it writes the tuples of a batch and their inits.
"""

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from acktree.acker.service import Acker
from acktree.core import world
from acktree.core.edges import EdgeSource
from acktree.core.kafka.clients import make_consumer
from acktree.core.topology.registry import read_history
from acktree.producers import BasicBolt
from acktree.producers.collecting.arithmetic.packing import InitPacker
from acktree.producers.worker.loop import Worker
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import emitted_value, root_id
from spark.spouts import DEADLINE_S, SpoutTester

pytestmark = pytest.mark.simulated


class Unreadable(BasicBolt):
    def execute(self, tup, emit):
        if tup.value == b"record 1":
            raise UnicodeError(f"no such letter in {tup.value!r}")


def emit(t: SpoutTester, emitted: list[tuple[int, int]], padding: bytes = b"") -> None:
    """Write each (offset, generation) as a tuple, and its init."""
    history = read_history(t.bootstrap, t.name, {})
    version, edges = history.latest.version, EdgeSource()
    hashes = history.readers(version, f"{t.name}.out").hashes
    inits = InitPacker(
        history, 0, lambda topic, partition, value: t.producer.produce(topic, value, partition=partition)
    )
    for offset, generation in emitted:
        anchor = Anchor(version, root_id(0, generation, offset), edges.one())
        inits.add(version, anchor.root, emitted_value(anchor.edge, hashes))
        header = encode_header(version, [anchor])
        value = b"record %d" % offset + (b" " + padding if padding else b"")
        t.producer.produce(f"{t.name}.out", value, headers=[(HEADER, header)])
        t.producer.poll(0)
    inits.flush()
    t.producer.flush()


def dead_letter(t: SpoutTester) -> dict[str, bytes]:
    """Return the headers of the first dead letter."""
    consumer = make_consumer({"bootstrap.servers": t.bootstrap, "group.id": f"{t.name}.look"})
    consumer.assign([TopicPartition(f"{t.name}.dead-letter", 0, 0)])
    dead_letter = consumer.poll(DEADLINE_S)
    consumer.close()
    assert dead_letter is not None
    return dict(dead_letter.headers() or [])


def test_the_dead_letter_has_the_exceptions_type_text_and_task(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=3, max_attempts=2)
    bolt = Worker(t.bootstrap, t.name, Unreadable())
    roles: list[Worker | Acker] = [bolt, Acker(t.bootstrap, t.name)]
    threads = [world.start_thread(role.run, "role") for role in roles]
    try:
        emit(t, t.emitted(t.next_batch()))
        t.until(lambda: t.count("failed") == 1)
        t.now_s += 100
        emit(t, t.emitted(t.next_batch()))
        t.until(lambda: t.committed() == 3)
    finally:
        for role in roles:
            role.stop()
        for thread in threads:
            thread.join(DEADLINE_S)
    headers = dead_letter(t)
    assert headers["acktree-reason"] == b"UnicodeError: no such letter in b'record 1'"
    assert headers["acktree-task"] == bolt.task.encode()
    assert (headers["acktree-cause"], headers["acktree-attempts"]) == (b"FAILED", b"2")
