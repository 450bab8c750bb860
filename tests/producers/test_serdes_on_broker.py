"""Values read by a type on a real broker: poison in the middle, a killed worker, several fetches of input."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from acktree.wire.control_records import NEVER
from acktree.wire.header import Anchor, encode_header
from acktree.wire.ids import emitted_value, origin_of, root_id
from deadlines import ANSWER_S
from producers.cluster import WorkerCluster, until

pytestmark = pytest.mark.broker

TYPED_BOLTS = """
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

from acktree.producers import AsyncBolt, BasicBolt, BatchBolt


@dataclass
class Word:
    text: str
    number: int


def line_of(word):
    if word.number == 3_000 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return Word(word.text, -word.number)


class Basic(BasicBolt):
    reads_as, emits_as = Word, Word

    def execute(self, tup, emit):
        emit(line_of(tup.payload))


class Batch(BatchBolt):
    reads_as, emits_as = Word, Word

    def execute(self, tuples, collector):
        collector.emit_many([line_of(word) for word in tuples.payloads], tuples)


class Concurrent(AsyncBolt):
    reads_as, emits_as = Word, Word

    async def execute(self, tup, emit):
        emit(line_of(tup.payload))
"""
TYPED_BOLTS += """

from acktree.producers import bolt

TOPICS = {"reads": os.environ["READS"], "emits": os.environ["EMITS"], "key": lambda word: word.text[:1]}


@bolt(**TOPICS)
def function(word: Word) -> Word:
    return line_of(word)


@bolt(**TOPICS)
async def generator(word: Word) -> AsyncIterator[Word]:
    yield line_of(word)
"""
POISON = {1_000: b'{"text": "x", "number": "many"}', 2_500: b"\xff"}
TOTAL = 4_000


@pytest.mark.parametrize(
    ("kind", "exactly_once"),
    [
        ("function", False),
        pytest.param("Batch", False, marks=pytest.mark.slow),
        pytest.param("function", True, marks=pytest.mark.slow),
        pytest.param("generator", True, marks=pytest.mark.slow),
        pytest.param("Basic", True, marks=pytest.mark.slow),
        pytest.param("Concurrent", True, marks=pytest.mark.slow),
        pytest.param("Concurrent", False, marks=pytest.mark.slow),
    ],
)
def test_poison_is_rejected_and_every_other_value_survives_a_killed_worker(
    kind: str, exactly_once: bool, cluster: WorkerCluster, tmp_path: Path
):
    (tmp_path / "typed_bolts.py").write_text(TYPED_BOLTS)
    cluster.apply(exactly_once, first=(["a"], ["b"]), second=(["b"], []))
    hashes = cluster.history.readers(cluster.version, cluster.topic("a")).hashes
    for number in range(TOTAL):
        anchor = Anchor(cluster.version, root_id(0, 16, number), cluster.edges.one())
        cluster.fold[anchor.root] ^= emitted_value(anchor.edge, hashes)
        value = POISON.get(number) or json.dumps({"text": "x" * 100, "number": number}).encode()
        cluster.write(value, encode_header(cluster.version, [anchor]), 0)
    cluster.flush()
    command = [sys.executable, "-m", "acktree.console.main", "bolt", "run", f"typed_bolts:{kind}"]
    command += ["-b", cluster.bootstrap, "--topology", cluster.name, "--bolt", "first"]
    command += ["-X", "session.timeout.ms=6000"]
    env = {**os.environ, "READS": cluster.topic("a"), "EMITS": cluster.topic("b")}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    assert process.wait(ANSWER_S) == -9
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    try:
        until(lambda: cluster.committed("first") == cluster.ends(), "everything committed")
    finally:
        process.terminate()
        assert process.wait(ANSWER_S) == 0
    records = cluster.read(cluster.topic("b"))
    written = Counter(json.loads(record.value())["number"] for record in records)
    assert {record.key() for record in records} == {b"x" if kind in ("function", "generator") else None}
    assert set(written) == {-number for number in range(TOTAL) if number not in POISON}
    if exactly_once:
        assert set(written.values()) == {1}
    failed = [fail for ack in cluster.acks() for fail in ack.fails]
    assert {origin_of(fail.root).offset for fail in failed} == set(POISON)
    never = {origin_of(fail.root).offset for fail in failed if fail.retry_after_ms == NEVER}
    assert never == set(POISON)
    assert all("NotDeserializable" in fail.reason and cluster.topic("a") in fail.reason for fail in failed)
