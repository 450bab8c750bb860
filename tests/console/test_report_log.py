"""Reports of a day are read in turns, so that what a page shows of now never waits for them."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from acktree.console.view.report_log import HISTORY_S, REPORTS_SPAN_S, TURN_S, ReportLog
from acktree.core.kafka.log_reader import Found, LogRange
from acktree.core.reports.stats import STATS_INTERVAL_S, Report
from acktree.core.world import RealWorld, use_world

START_S = 1_700_000_000.0
PLACE = "t.stats", 0
BATCH, BATCHES_A_TURN = 10, 5


class SlowWorld(RealWorld):
    """A world whose time is only what reading takes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


class StatsTopic:
    """The cluster's topic of reports, of which a batch takes a fixed time to read; counts what is read."""

    topology = SimpleNamespace(stats_topic=PLACE[0])

    def __init__(self, world: SlowWorld) -> None:
        self.world, self.times_s, self.read = world, [], []

    def report(self, time_s: float) -> None:
        self.times_s.append(time_s)

    def partitions(self, topics):
        return [PLACE]

    def ends(self, places):
        return {PLACE: len(self.times_s)}

    def at_time(self, places, time_ms):
        found = (offset for offset, time_s in enumerate(self.times_s) if 1000 * time_s >= time_ms)
        return {PLACE: next(found, len(self.times_s))}

    def scan(self, spans, deadline_s=None) -> Iterator[list]:
        span = spans[PLACE]
        for first in range(span.start, span.end, BATCH):
            self.world.now_s += TURN_S / BATCHES_A_TURN
            offsets = range(first, min(first + BATCH, span.end))
            self.read += offsets
            messages = [self._message(offset) for offset in offsets]
            yield LogRange(PLACE, Found.READ, offsets.start, offsets.stop, messages)
            if deadline_s is not None and self.world.now_s > deadline_s:
                return

    def _message(self, offset: int) -> SimpleNamespace:
        time_ms = int(1000 * self.times_s[offset])
        report = Report("bolt", "count", "count@a:1", time_ms, {"executed": offset})
        return SimpleNamespace(value=report.encode, timestamp=lambda: (1, time_ms), offset=lambda: offset)


@pytest.fixture
def topic() -> Iterator[StatsTopic]:
    with use_world(world := SlowWorld()):
        yield StatsTopic(world)


def hours_of_reports(topic: StatsTopic, hours: float) -> None:
    for turn in range(int(3600 * hours / STATS_INTERVAL_S)):
        topic.report(START_S - 3600 * hours + STATS_INTERVAL_S * turn)


def test_the_newest_reports_are_read_first_and_older_ones_for_one_turn_only(topic):
    hours_of_reports(topic, 10)
    log, end = ReportLog(), len(topic.times_s)
    reports = log.read(topic)
    recent = int(REPORTS_SPAN_S / STATS_INTERVAL_S)
    assert topic.read[:recent] == list(range(end - recent, end))
    assert topic.read[recent:] == list(range(BATCH * (BATCHES_A_TURN + 1)))
    assert reports.rates("bolt", "count", int(1000 * START_S)) is not None


def test_unread_reports_are_mentioned_until_they_are_read(topic):
    hours_of_reports(topic, 1)
    log, unread = ReportLog(), []
    for _ in range(100):
        reports = log.read(topic)
        unread += log.unread()
        if log.is_complete:
            break
        topic.report(topic.world.now_s)
    assert unread[0] == "windows are not complete yet: 3% of the reports of the last day have been read"
    assert len(unread) == 3600 / STATS_INTERVAL_S // (BATCH * (BATCHES_A_TURN + 1))
    assert log.unread() == []
    assert reports.accepted == reports.next_offset == len(topic.times_s)


def test_once_all_is_read_each_report_is_read_once(topic):
    hours_of_reports(topic, 0.1)
    log = ReportLog()
    for _ in range(100):
        log.read(topic)
    topic.read.clear()
    topic.report(topic.world.now_s)
    reports = log.read(topic)
    assert topic.read == [len(topic.times_s) - 1]
    counted, _ = reports.counted("bolt", "count", None, int(1000 * topic.world.now_s))
    assert counted == {"executed": len(topic.times_s) - 1}


def test_reports_older_than_the_longest_window_are_not_read(topic):
    topic.report(START_S - HISTORY_S - 1)
    topic.report(START_S - HISTORY_S + 60)
    ReportLog().read(topic)
    assert topic.read == [1]


def test_a_topic_without_reports_is_complete_immediately(topic):
    log = ReportLog()
    assert log.read(topic).accepted == 0
    assert (log.is_complete, log.unread()) == (True, [])
