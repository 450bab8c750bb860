"""Reads the reports that a page shows: the latest immediately, earlier ones in turns.

A day of reports of a large topology takes minutes to read. Invariant: no call reads old reports for much
longer than TURN_S, so the figures of a page stay fresh meanwhile, and the page says what is not read yet.
"""

from acktree.console.view.cluster import Cluster, OffsetRange, Place
from acktree.console.view.reports import Reports
from acktree.core import world
from acktree.core.kafka.log_reader import Found

REPORTS_SPAN_S = 60.0
"""So far back a command reads: enough to know what reports, and its rates."""
HISTORY_S = 90_000.0
"""So far back a page reads; the topic keeps no more."""
TURN_S = 0.5


class ReportLog:
    """Reads reports from one look at a topology to the next."""

    def __init__(self) -> None:
        self._recent, self._older = Reports(), Reports()
        self._first_offset: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the reports of HISTORY_S have been read."""
        return self._recent is self._older

    def read(self, cluster: Cluster) -> Reports:
        """Return the reports that are known, after reading on.

        Until those of HISTORY_S are read, these are the ones since REPORTS_SPAN_S before the first call.
        """
        read_reports(cluster, self._recent, REPORTS_SPAN_S)
        if not self.is_complete:
            self._read_older(cluster)
        return self._recent

    def _read_older(self, cluster: Cluster) -> None:
        place, older, end = _place(cluster), self._older, self._recent.next_offset
        if self._first_offset is None:
            self._first_offset = older.next_offset = _offset_before(cluster, place, HISTORY_S, end)
        if _add(cluster, older, place, end, world.monotonic_s() + TURN_S):
            self._recent = older

    def unread(self) -> list[str]:
        """Return what is not read yet, as a sentence."""
        if self.is_complete or self._first_offset is None:
            return []
        share = (self._older.next_offset - self._first_offset) / (
            self._recent.next_offset - self._first_offset
        )
        return [f"windows are not complete yet: {share:.0%} of the reports of the last day have been read"]


def read_reports(cluster: Cluster, reports: Reports, since_s: float) -> None:
    """Read what was reported since the last call, at first what the last ``since_s`` seconds hold."""
    place = _place(cluster)
    if place not in cluster.partitions([place[0]]):
        return
    end = cluster.ends([place])[place]
    if not reports.next_offset:
        reports.next_offset = _offset_before(cluster, place, since_s, end)
    _add(cluster, reports, place, end)


def _place(cluster: Cluster) -> Place:
    return cluster.topology.stats_topic, 0


def _offset_before(cluster: Cluster, place: Place, since_s: float, end: int) -> int:
    since_ms = int((world.wall_s() - since_s) * 1000)
    return cluster.at_time([place], since_ms).get(place, end)


def _add(cluster: Cluster, reports: Reports, place: Place, end: int, deadline_s: float | None = None) -> bool:
    """Add records up to ``end``, or to the batch in which a deadline passes; return whether that was all.

    What nobody can read is skipped: each process reports again. What an open transaction hides is read when
    that has ended.
    """
    is_all = reports.next_offset >= end
    for log_range in cluster.scan({place: OffsetRange(reports.next_offset, end)}, deadline_s):
        for message in log_range.records:
            reports.add_record(message.value(), message.timestamp()[1])
        is_continued = log_range.found not in (Found.HIDDEN, Found.FELL)
        reports.next_offset = log_range.end if is_continued else log_range.start
        is_all = log_range.end >= end
    return is_all
