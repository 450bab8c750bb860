"""What waits for a bolt that stands still is asked for all of its partitions at once."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import OffsetSpec

from acktree.acker import standing_bolts
from acktree.acker.standing_bolts import SILENT_AFTER_S, StandingBolts, Unread
from acktree.schemas.stats import Report
from acktree.schemas.world import RealWorld, use_world

PARTITIONS = 64
NOTHING = -1001


class SteppedWorld(RealWorld):
    now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s


class WordsTopic:
    """One topic of tuples, [10, 100) in each partition; counts the requests for offsets."""

    def __init__(self, committed: dict[int, int]) -> None:
        self.committed, self.requests = committed, 0

    def list_offsets(self, wanted, **_options):
        self.requests += 1
        answers = {}
        for place, spec in wanted.items():
            answers[place] = Future()
            offset = 10 if spec is OffsetSpec.earliest() else 100
            answers[place].set_result(SimpleNamespace(offset=offset))
        return answers

    def list_topics(self, timeout):
        return SimpleNamespace(topics={"words": SimpleNamespace(partitions=range(PARTITIONS))})

    def assign(self, places):
        pass

    def consume(self, count, timeout_s):
        report = Report("acker", "acker", "acker-0", 0, {})
        message = SimpleNamespace(error=lambda: None, value=report.encode)
        self.is_read = not getattr(self, "is_read", True)
        return [message] if self.is_read else []

    def read_committed(self, bootstrap, user, group, places):
        return [
            SimpleNamespace(topic=p.topic, partition=p.partition, offset=offset, metadata="", error=None)
            for p in places
            for offset in (self.committed.get(p.partition, NOTHING),)
        ]


@pytest.fixture
def clock():
    with use_world(clock := SteppedWorld()):
        yield clock


def find(monkeypatch, clock, broker):
    """Return what waits for the bolt at the second look."""
    for name in ("make_admin", "make_consumer"):
        monkeypatch.setattr(standing_bolts, name, lambda *_: broker)
    monkeypatch.setattr(standing_bolts, "read_committed", broker.read_committed)
    topology = SimpleNamespace(
        acker_group="t.acker",
        stats_topic="t.stats",
        bolts={"count": SimpleNamespace(reads=["words"])},
        group_of=lambda bolt: f"t.{bolt}",
    )
    bolts = StandingBolts("a broker", {}, topology)
    assert bolts.find(topology) == {}
    broker.requests = 0
    clock.now_s += SILENT_AFTER_S
    return bolts.find(topology)


def test_all_partitions_are_asked_for_in_one_request_for_ends_and_one_for_starts(monkeypatch, clock):
    broker = WordsTopic({})
    assert find(monkeypatch, clock, broker) == {
        "count": {("words", number): Unread(10, 100) for number in range(PARTITIONS)}
    }
    assert broker.requests == 2


def test_what_waits_begins_behind_the_commit_and_within_the_log(monkeypatch, clock):
    broker = WordsTopic({**dict.fromkeys(range(PARTITIONS), 100), 1: 5, 2: 40})
    found = find(monkeypatch, clock, broker)["count"]
    assert found == {("words", 1): Unread(10, 100), ("words", 2): Unread(40, 100)}


def test_nothing_waits_for_a_bolt_that_has_read_all(monkeypatch, clock):
    broker = WordsTopic(dict.fromkeys(range(PARTITIONS), 100))
    assert find(monkeypatch, clock, broker) == {}
    assert broker.requests == 1
