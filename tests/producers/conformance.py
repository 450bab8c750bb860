"""The runs of the conformance suite: one bolt, in the in-memory double or in a worker on a broker."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from acktree.producers.testing import BoltDouble, Emission
from acktree.wire.header import HEADER, decode_header, find_header
from acktree.wire.ids import origin_of
from producers.cluster import Sink, WorkerCluster, until


@dataclass
class Outcome:
    """The outcome after all values were executed; values are numbered from 0."""

    emitted: list[Emission]
    acked: set[int]
    failed: dict[int, str]
    open: set[int]
    resets: list[int]


Run = Callable[..., Outcome]


def in_memory(exactly_once: bool) -> Run:
    def run(bolt, count: int, emits=("b",), held: int = 0) -> Outcome:
        double = BoltDouble(bolt, emits=emits, exactly_once=exactly_once)
        double.give(*(b"%d" % number for number in range(count)))
        double.tick()
        assert len(double.in_hand) == held
        double.close()
        return Outcome(double.emitted, double.acked, double.failed, set(double.open), double.resets)

    return run


def on_broker(cluster: WorkerCluster, exactly_once: bool) -> Run:
    def run(bolt, count: int, emits=("b",), held: int = 0) -> Outcome:
        cluster.apply(exactly_once, bolt=(["a"], list(emits)))
        cluster.apply(reader=(list(emits), []))
        cluster.emit(range(count), 0)
        worker = cluster.start(bolt, "bolt")
        until(
            lambda: worker.error or worker.acked + worker.failed == count - held,
            "every tuple is acked or failed",
        )
        worker.stop()
        records = [record for short in emits for record in cluster.read(cluster.topic(short))]
        reader = cluster.start(Sink(), "reader")
        until(lambda: reader.acked == len(records), "every record is read")
        reader.stop()
        fails = [fail for ack in cluster.acks() for fail in ack.fails]
        acks = [entry for ack in cluster.acks() if ack.task.startswith("bolt@") for entry in ack.acks]
        return Outcome(
            [emission(record, cluster.name) for record in records],
            {origin_of(int(entry["root"])).offset for entry in acks},
            {origin_of(fail.root).offset: fail.reason for fail in fails},
            {origin_of(root).offset for root in cluster.open_roots()},
            [origin_of(int(root)).offset for ack in cluster.acks() for root in ack.resets],
        )

    return run


def emission(record, prefix: str) -> Emission:
    header = find_header(record.headers())
    anchors = decode_header(header).anchors if header else ()
    numbers = tuple(origin_of(anchor.root).offset for anchor in anchors)
    rest = [pair for pair in record.headers() or () if pair[0] != HEADER]
    return Emission(record.topic().removeprefix(f"{prefix}."), record.value(), record.key(), rest, numbers)


def conformance(*real: str, places: tuple[str, ...] = ("double", "broker")) -> pytest.MarkDecorator:
    """Run a test with the double and with the broker; ``real``: the places that are always on a real one.

    The four tests with such a place cover bolts that get tuples, batches and tables, in either guarantee.
    """
    assert set(real) <= set(places)
    cases = [pytest.param(place, marks=[pytest.mark.real] if place in real else []) for place in places]
    return pytest.mark.parametrize("run", cases, indirect=True)


def conformance_with_exactly_once(*real: str) -> pytest.MarkDecorator:
    """Run a test for both guarantees, too: these bolts have another collector for exactly once."""
    return conformance(*real, places=("double", "double-exactly-once", "broker", "broker-exactly-once"))


def short(topic: str, given) -> str:
    """Return the full name of a topic, for a bolt in the double or on the broker."""
    return given.topic.removesuffix("a") + topic if given.topic.endswith(".a") else topic


def by_value(outcome: Outcome) -> list[Emission]:
    return sorted(outcome.emitted, key=lambda emission: (emission.value, emission.topic))
