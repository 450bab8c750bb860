"""A topology with dead letters, and the verbs of its operator."""

import json
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.console.main import main
from acktree.core import world
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.wire.codec import decode_result_record
from acktree.wire.control_records import ReplayCommand, Span
from deadlines import stretched

WAIT_S = stretched(30)
CITY, SLOW = "no such city", "too slow\r\n\x1b[2J"
LETTERS = [(0, CITY), (5, CITY), (6, CITY), (6, SLOW), (99, CITY), (7, SLOW)]
"""Source offset and reason of each dead letter; offset 0 is removed, 99 was never there."""


@dataclass
class DeadLetterTopology:
    """A topology with dead letters and the verbs of its operator."""

    bootstrap: str
    name: str

    @property
    def source(self) -> str:
        return f"{self.name}.lines"

    def create(self) -> None:
        self.publish(self.source)
        admin = make_admin(self.bootstrap, {})
        for future in admin.delete_records([TopicPartition(self.source, 0, 1)]).values():
            world.wait_for(future, WAIT_S)
        for offset, reason in LETTERS:
            self.give_up(offset, reason)

    def publish(self, topic: str, partitions: int = 1) -> None:
        """Publish the topology with one more source topic, of ten records."""
        admin = make_admin(self.bootstrap, {})
        world.wait_for(admin.create_topics([NewTopic(topic, partitions)])[topic], WAIT_S)
        topics = json.dumps(list(dict.fromkeys((self.source, topic))))
        text = f'name = "{self.name}"\n[spouts.lines]\ntopics = {topics}\nemits = ["{self.name}.w"]\n'
        text += f"tasks = {partitions}\n"
        text += f'[bolts.count]\nreads = ["{self.name}.w"]\n'
        apply_topology(self.bootstrap, parse_topology(text), {})
        producer = make_producer({"bootstrap.servers": self.bootstrap})
        for number in range(10 * partitions):
            producer.produce(topic, b"line", partition=number % partitions)
        assert producer.flush(WAIT_S) == 0

    def give_up(self, offset: int, reason: str, partition: int = 0) -> None:
        headers = {
            "origin": f"{self.source}/{partition}/{offset}",
            "attempts": "3",
            "cause": "FAILED",
            "task": "count@vm:1",
            "reason": reason,
        }
        producer = make_producer({"bootstrap.servers": self.bootstrap})
        named = [(f"acktree-{name}", text.encode()) for name, text in headers.items()]
        producer.produce(f"{self.name}.dead-letter", b"line", headers=named)
        assert producer.flush(WAIT_S) == 0

    def commands(self) -> list[tuple[Span, ...]]:
        """Return the spans of every replay command that was written."""
        latest = read_history(self.bootstrap, self.name, {}).latest
        place = TopicPartition(latest.result_topic(latest.task_of(latest.slots[0])), 0, 0)
        reader = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": self.name})
        _, end = reader.get_watermark_offsets(place, WAIT_S)
        reader.assign([place])
        found = [decode_result_record(each.value()) for each in (reader.consume(end, WAIT_S) if end else [])]
        reader.close()
        assert len(found) == end
        return [each.spans for each in found if isinstance(each, ReplayCommand)]

    def acktree(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, [*arguments, "--topology", self.name, "-b", self.bootstrap])


def source_records(topology: DeadLetterTopology) -> list[Any]:
    """Return the records of the source partition, those of aborted transactions left out."""
    settings = {
        "bootstrap.servers": topology.bootstrap,
        "group.id": topology.name,
        "enable.partition.eof": True,
    }
    reader = make_consumer(settings)
    reader.assign([TopicPartition(topology.source, 0, 1)])
    found = []
    while (record := reader.poll(WAIT_S)) is not None and record.error() is None:
        found.append(record)
    reader.close()
    return found


def edit(topology: DeadLetterTopology, value: bytes, *more: str, letter: str = "1") -> Any:
    arguments = ["dead-letter", "replay", letter, "--edit", "--value-file", "-", *more]
    return CliRunner().invoke(
        main, [*arguments, "--topology", topology.name, "-b", topology.bootstrap], input=value
    )


def give_up_value(topology: DeadLetterTopology, value: bytes, origin: str = "") -> str:
    """Write a dead letter with a value; return its name."""
    producer, names = make_producer({"bootstrap.servers": topology.bootstrap}), []
    producer.produce(
        f"{topology.name}.dead-letter",
        value,
        headers=[("acktree-origin", (origin or f"{topology.source}/0/3").encode())],
        on_delivery=lambda _, record: names.append(f"0/{record.offset()}"),
    )
    assert producer.flush(WAIT_S) == 0
    return str(names[0])
