"""Idempotent writes: a replayed tuple is written once, in SQLite and in PostgreSQL."""

import importlib
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from acktree.producers.bolt import Context
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.collecting.collector import Collector
from acktree.producers.idempotency import NoLastingKey, WriteOnce, key_of
from acktree.producers.tuples import SourceOrigin
from acktree.producers.worker.executing.bolt_kinds import make_execution
from acktree.producers.worker.executing.intake import Intake
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import generation_of, root_id
from producers.trees import Net, published

pytestmark = pytest.mark.xdist_group("postgres")
EXAMPLES = Path(__file__).parents[2] / "examples" / "idempotent"


class ExampleSink:
    """A bolt of the examples, run without Kafka on records with source coordinates."""

    def __init__(self, module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        sys.modules.pop(module, None)
        self.bolt = getattr(importlib.import_module(module), name)()
        self.net = Net(published(sink=(["a"], [])))
        history = self.net.history
        packer = AckPacker(history, "sink", self.net.on_control_record)
        self.collector = Collector("sink", history, packer, self.net.produce)
        self.execution = make_execution(self.bolt, self.collector, Intake("sink", history), lambda *_: {})
        self.execution.prepare(Context(history.latest, "sink", "sink@test"))

    def give(self, *values: str, attempt: int = 0) -> None:
        """Give values whose source offsets are their indexes; a replay is another attempt."""
        records = []
        for offset, value in enumerate(values):
            anchor = Anchor(1, root_id(0, generation_of(1, attempt), offset), self.net.edges.one())
            header = [(HEADER, encode_header(1, [anchor]))]
            records.append(
                Message(topic="a", partition=0, offset=offset, value=value.encode(), headers=header)
            )
        self.execution.run(records)
        self.collector.flush()


@pytest.fixture(params=["sqlite", "postgres"])
def sink(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ExampleSink]:
    if request.param == "sqlite":
        monkeypatch.setenv("SINK_DATABASE", str(tmp_path / "totals.sqlite"))
        made = ExampleSink("sqlite_sink", "SqliteSink", monkeypatch)
    else:
        monkeypatch.setenv("SINK_DATABASE", request.getfixturevalue("postgres"))
        made = ExampleSink("postgres_sink", "PostgresSink", monkeypatch)
        made.bolt.database.execute("truncate totals, acktree_written")
    yield made
    made.execution.cleanup()


def totals(sink: ExampleSink) -> dict[str, int]:
    return dict(sink.bolt.database.execute("select account, amount from totals").fetchall())


def test_a_replay_writes_nothing_again_and_new_lines_are_written(sink: ExampleSink):
    sink.give("anna 1", "anna 2", "bert 5")
    sink.give("anna 1", "anna 2", "bert 5", attempt=1)
    sink.give("anna 1", "anna 2", "bert 5", "bert 5", attempt=2)
    assert totals(sink) == {"anna": 3, "bert": 10}
    assert sink.collector.counters.failed == 0


def test_a_tuple_that_cannot_be_written_fails_alone_and_its_replay_may_be_written(sink: ExampleSink):
    sink.give("anna 1", "bert much", "anna 2")
    assert totals(sink) == {"anna": 3}
    assert (sink.collector.counters.acked, sink.collector.counters.failed) == (2, 1)
    sink.give("anna 1", "bert 7", "anna 2", attempt=1)
    assert totals(sink) == {"anna": 3, "bert": 7}


def test_keys_below_the_frontier_are_forgotten(sink: ExampleSink):
    sink.give("anna 1", "anna 2", "bert 5")
    cursor = sink.bolt.database.cursor()
    assert sink.bolt.once.forget(cursor, "s", "src", 3, 2) == 2
    left = cursor.execute("select key from acktree_written").fetchall()
    assert left == [("s/src@id/3/2#0",)]


def test_a_key_names_all_source_records_and_the_part():
    net = Net(published(one=(["a"], [])))
    assert key_of(net.take("one", net.spout(7))) == "s/src@id/3/7"
    assert key_of(net.take("one", net.spout(8, 7)), 2) == "s/src@id/3/7+s/src@id/3/8#2"


def test_each_part_of_a_source_record_is_written_once():
    net, once = Net(published(one=(["a"], []))), WriteOnce()
    cursor = sqlite3.connect(":memory:").cursor()
    once.create(cursor)
    tup = net.take("one", net.spout(7))
    assert [once.first(cursor, tup, part) for part in (0, 1, 0, 1, "")] == [True, True, False, False, True]


def test_a_write_says_its_number_among_the_writes_of_its_record():
    net, once = Net(published(one=(["a"], []))), WriteOnce()
    cursor = sqlite3.connect(":memory:").cursor()
    once.create(cursor)
    tup = net.take("one", net.spout(7))
    with pytest.raises(TypeError, match="part"):
        once.first(cursor, tup)  # type: ignore[call-arg]
    assert once.first(cursor, tup, 0)


def test_the_origin_of_a_tuple_in_a_block_is_the_block_and_not_a_key():
    topology = published(one=(["a"], []))
    table = topology.spouts["s"].model_copy(update={"block": 100})
    net = Net(topology.model_copy(update={"spouts": {"s": table}}))
    tup = net.take("one", net.spout(700))
    assert tup.origin == SourceOrigin("s", "src", 3, 700, 0, 100, "id")
    with pytest.raises(NoLastingKey, match="up to 100 records that share a root"):
        key_of(tup)


def test_a_record_at_the_same_offset_of_a_recreated_topic_is_also_written():
    once, cursor = WriteOnce(), sqlite3.connect(":memory:").cursor()
    once.create(cursor)
    written = []
    for topic_id in ("first", "second", "second"):
        topology = published(one=(["a"], []))
        slots = tuple(slot.model_copy(update={"topic_id": topic_id}) for slot in topology.slots)
        net = Net(topology.model_copy(update={"slots": slots}))
        written.append(once.first(cursor, net.take("one", net.spout(7)), 0))
    assert written == [True, True, False]


def test_a_tuple_without_a_lasting_origin_is_refused():
    net = Net(published(one=(["a"], [])))
    with pytest.raises(NoLastingKey, match="your own key"):
        key_of(net.take("one", net.spout()))
    slot = net.history.versions[1].slots[0].model_copy(update={"topic": ""})
    net.history.versions[1] = net.history.versions[1].model_copy(update={"slots": (slot,)})
    with pytest.raises(NoLastingKey):
        key_of(net.take("one", net.spout(7)))
