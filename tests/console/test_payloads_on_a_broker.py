"""What a trace shows of the record and its tuples: on the command line, on the page, and without rights."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

import numpy as np
import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.console.main import main
from acktree.console.page.serving.frame import PageSettings
from acktree.console.view.records import tree_reader
from acktree.core import world
from acktree.core.edges import EdgeSource
from acktree.core.kafka.clients import make_admin, make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.wire.codec import encode_ack_init
from acktree.wire.control_records import ENTRY, AckInit
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import emitted_value, root_id
from console.page_visitor import Visitor, visit
from deadlines import stretched
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated

WAIT_S = stretched(30)
SOURCE = [b"gone", b'{"line": [1, 2]}', b"<b>bold</b>\x1b[2J"]
WORDS = [b"first", b"\xff\xfe", b"x" * 5_000]


class TracedTopology:
    """A topology whose record at offset 1 has three tuples; offset 0 is removed, offset 3 was aborted."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.source, words = f"{name}.lines", f"{name}.words"
        admin = make_admin(bootstrap, {})
        world.wait_for(admin.create_topics([NewTopic(self.source, 1)])[self.source], WAIT_S)
        text = f'name = "{name}"\n[spouts.lines]\ntopics = ["{self.source}"]\nemits = ["{words}"]\n'
        text += f'[spouts.fed]\nemits = ["{words}"]\n[bolts.count]\nreads = ["{words}"]\n'
        apply_topology(bootstrap, parse_topology(text), {})
        self._produce(words)
        self._abort_one()
        gone = TopicPartition(self.source, 0, 1)
        for future in admin.delete_records([gone]).values():
            world.wait_for(future, WAIT_S)

    def _produce(self, words: str) -> None:
        latest = read_history(self.bootstrap, self.name, {})
        version = latest.latest.version
        (slot,) = [each.slot for each in latest.latest.slots if each.spout == "lines"]
        root, edges = root_id(slot, 16, 1), [EdgeSource().one() for _ in WORDS]
        value = 0
        producer = make_producer({"bootstrap.servers": self.bootstrap})
        for line in SOURCE:
            producer.produce(self.source, line, b"key")
        for edge, word in zip(edges, WORDS, strict=True):
            value ^= emitted_value(edge, latest.readers(version, words).hashes)
            header = encode_header(version, [Anchor(version, root, edge)])
            producer.produce(words, word, headers=[(HEADER, header)])
        init = np.array([(root, value)], ENTRY)
        producer.produce(f"{self.name}.ack-init", encode_ack_init(AckInit(0, version, init)), partition=0)
        assert producer.flush(WAIT_S) == 0

    def _abort_one(self) -> None:
        writer = make_producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.name})
        writer.init_transactions(WAIT_S)
        writer.begin_transaction()
        writer.produce(self.source, b"aborted")
        assert writer.flush(WAIT_S) == 0
        writer.abort_transaction(WAIT_S)

    def trace(self, *arguments: str, style: str = "json") -> str:
        command = ["trace", *arguments, "--topology", self.name, "-b", self.bootstrap, "--format", style]
        done = CliRunner().invoke(main, command, env={"TERM": "dumb", "COLUMNS": "200"})
        assert done.exit_code in (0, 1), done.output
        return done.stdout

    def payload(self, offset: int) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.trace(self.source, "0", str(offset), "--payloads"))[
            "payload"
        ]
        return found

    def page(self, *, payloads: bool = True) -> AbstractContextManager[Visitor]:
        return visit(PageSettings(self.bootstrap, self.name, {}, payloads=payloads))


@pytest.fixture
def traced(kafka: str, unique: str, simulation: Simulation | None) -> TracedTopology:
    made: list[TracedTopology] = []
    run_in(simulation, lambda: made.append(TracedTopology(kafka, unique)))
    return made[0]


@pytest.fixture
def page(traced: TracedTopology, simulation: Simulation | None) -> Iterator[Visitor]:
    visits, visitors = ExitStack(), list[Visitor]()
    run_in(simulation, lambda: visitors.append(visits.enter_context(traced.page())))
    yield visitors[0]
    run_in(simulation, visits.close)


def test_a_trace_shows_the_record_and_its_tuples_on_request(traced: TracedTopology):
    found = json.loads(traced.trace(traced.source, "0", "1", "--payloads"))
    value = found["payload"]["value"]
    assert (value["form"], json.loads(value["text"])) == ("json", {"line": [1, 2]})
    assert found["payload"]["key"]["text"] == "key"
    (emission,) = found["emissions"]
    shown = [each["payload"]["value"] for each in emission["tuples"]]
    assert sorted((each["form"], each["text"], each["size_bytes"]) for each in shown) == [
        ("hex", "ff fe", 2),
        ("text", "first", 5),
        ("text", "x" * 2_048, 5_000),
    ]
    text = traced.trace(traced.source, "0", "1", "--payloads", style="text")
    assert "value, text, 5 bytes: first" in text
    assert "value, json, 16 bytes: {" in text
    assert "the first 2,048 of 5,000 bytes" in text


def test_a_trace_shows_no_payload_by_default(traced: TracedTopology):
    found = json.loads(traced.trace(traced.source, "0", "1"))
    assert found["payload"] is None
    assert {each["payload"] for each in found["emissions"][0]["tuples"]} == {None}
    assert "first" not in traced.trace(traced.source, "0", "1", style="text").replace("first emission", "")


def test_no_control_character_of_a_record_reaches_the_terminal(traced: TracedTopology):
    text = traced.trace(traced.source, "0", "2", "--payloads", style="text")
    assert "<b>bold</b>\\x1b[2J" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (0, "is gone: retention removed everything below 1"),
        (3, "holds no record"),
        (99, "is not written yet"),
    ],
)
def test_a_missing_record_is_reported_as_missing(traced: TracedTopology, offset: int, words: str):
    payload = traced.payload(offset)
    assert words in str(payload["missing"])
    assert (payload["key"], payload["value"]) == (None, None)


def test_a_python_spout_has_no_source_record(traced: TracedTopology):
    latest = read_history(traced.bootstrap, traced.name, {}).latest
    (slot,) = [each.slot for each in latest.slots if each.spout == "fed"]
    root = f"{root_id(slot, 16, 5):016x}"
    found = json.loads(traced.trace("--root", root, "--payloads"))
    assert "is fed by Python" in found["payload"]["missing"]


def test_a_recreated_topic_shows_none_of_its_new_records(traced: TracedTopology):
    admin = make_admin(traced.bootstrap, {})
    world.wait_for(admin.delete_topics([traced.source])[traced.source], WAIT_S)
    assert "recreated" in str(traced.payload(1)["missing"])


def test_only_the_first_payloads_of_many_tuples_are_shown(
    traced: TracedTopology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tree_reader, "MAX_PAYLOADS", 2)
    found = json.loads(traced.trace(traced.source, "0", "1", "--payloads"))
    said = [each["payload"]["missing"] for each in found["emissions"][0]["tuples"]]
    assert said.count(None) == 2
    assert "only the payloads of" in next(filter(None, said))


@pytest.mark.real
def test_the_page_shows_payloads_escaped(traced: TracedTopology, page: Visitor):
    question = {"topic": traced.source, "partition": 0, "offset": 1}
    answer = page.get("/trace", params=question)
    assert answer.status_code == 200
    assert answer.text.count("<details>") == len(WORDS)
    assert "ff fe" in answer.text
    assert "x" * 2_048 in answer.text
    assert "x" * 2_049 not in answer.text
    assert "&#34;line&#34;: [" in answer.text
    assert page.get("/trace.json", params=question).json()["payload"]["value"]["form"] == "json"
    hostile = page.get("/trace", params={**question, "offset": 2}).text
    assert "&lt;b&gt;bold&lt;/b&gt;\\x1b[2J" in hostile
    assert "retention removed" in page.get("/trace", params={**question, "offset": 0}).text


def test_a_page_without_payloads_shows_none(traced: TracedTopology):
    producer = make_producer({"bootstrap.servers": traced.bootstrap})
    origin = ("acktree-origin", f"{traced.source}/0/1".encode())
    producer.produce(
        f"{traced.name}.dead-letter", b"secret", b"secret", headers=[origin, ("h-secret", b"secret")]
    )
    assert producer.flush(WAIT_S) == 0
    question = {"topic": traced.source, "partition": 0, "offset": 1}
    paths = ("/dead-letters", "/dead-letters.json", "/dead-letters/0/0", "/dead-letters/0/0.json")
    with traced.page() as client:
        assert all("secret" in client.get(path).text for path in paths[1:])
    with traced.page(payloads=False) as client:
        answer = client.get("/trace", params=question)
        assert "served with --no-payloads" in answer.text
        assert "<details>" not in answer.text
        assert "line&#34;" not in answer.text
        assert client.get("/trace.json", params=question).json()["payload"] is None
        for path in paths:
            assert "secret" not in client.get(path).text, path
        assert client.get("/dead-letters.json").json()["payloads"] is False
