"""An hour of figures: bounded, and what nobody observed is a gap, never a zero."""

import re
import time
from types import SimpleNamespace

from acktree.console.page.pictures.sparks import HEIGHT, WIDTH, draw, make_sparks
from acktree.console.page.routes.status_page import status_values
from acktree.console.page.serving import watcher
from acktree.console.page.serving.history import BUCKET_S, BUCKETS, MAX_LINES, SPAN_S, History, figures_of
from acktree.console.page.serving.rendering import make_environment, render
from acktree.console.page.serving.watcher import PageState
from acktree.console.view.reports import WINDOWS_S, Reports
from acktree.console.view.status import make_status
from console.test_page import published, reported, seen
from deadlines import stretched

BEGAN_S = 10_000 * BUCKET_S


def after(*looks):
    """Return the history after looks at (bucket, value of pending)."""
    history = History()
    for bucket, value in looks:
        history.add({"pending": value}, BEGAN_S + bucket * BUCKET_S + 1)
    return history.lines().get("pending")


def test_the_newest_observation_is_last_and_the_time_before_the_first_is_unknown():
    line = after((0, 4.0), (1, 5.0))
    assert len(line) == BUCKETS == SPAN_S / BUCKET_S
    assert line[-2:] == (4.0, 5.0)
    assert set(line[:-2]) == {None}


def test_unobserved_time_is_a_gap_and_an_observed_zero_is_not():
    assert after((0, 0.0), (1, None), (3, 2.0))[-4:] == (0.0, None, None, 2.0)


def test_a_short_peak_within_a_bucket_is_kept():
    history = History()
    for second, value in enumerate((1.0, 9.0, 2.0)):
        history.add({"pending": value}, BEGAN_S + second)
    assert history.lines()["pending"][-1] == 9.0


def test_memory_is_bounded_in_time_and_in_names():
    line = after(*((bucket, float(bucket)) for bucket in range(3 * BUCKETS)))
    assert line == tuple(float(bucket) for bucket in range(2 * BUCKETS, 3 * BUCKETS))
    history = History()
    for start in (0, MAX_LINES):
        history.add({f"lag of {start + n}": 1.0 for n in range(MAX_LINES)}, BEGAN_S)
    assert len(history.lines()) == MAX_LINES
    history.add({"lag of another": 1.0}, BEGAN_S + SPAN_S + BUCKET_S)
    history.add({"lag of another": 1.0}, BEGAN_S + SPAN_S + BUCKET_S)
    assert list(history.lines()) == ["lag of another"]


def test_the_figures_are_those_of_the_status_and_an_unknown_rate_stays_unknown():
    figures = figures_of(make_status(seen(published()), reported()))
    assert figures == {"pending": 3, "acked": None, "failed": None, "lag of count": 8, "lag of sum": 0}
    assert figures_of(make_status(seen(published()), Reports()))["pending"] is None


def test_a_gap_splits_the_picture_and_all_of_it_is_inside():
    spark = draw("pending", (None, 0.0, 3.0, None, 6.0, None, None, 1.0))
    assert spark.paths == ("M1.5,20 L2.5,11", "M4.5,2 h0.01", "M7.5,17 h0.01")
    (path,) = draw("pending", (5.0,) * BUCKETS).paths
    points = [float(each) for each in re.findall(r"[\d.]+", path)]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in zip(points[::2], points[1::2], strict=True))


def test_the_words_say_since_when_and_what_was_not_observed():
    text = "failed/s in the last hour: lowest 0, highest 2.5, now 2.5"
    assert draw("failed", (0.0, 0.0, 0.5, 2.5)).text == f"{text}; above 0 for 1 m"
    text = "pending in the last hour: lowest 1, highest 1,200, now 1,200"
    gap = "above 0 for at least 1 m; not observed for 30 s"
    assert draw("pending", (None, 1.0, 1200.0)).text == f"{text}; {gap}"
    assert draw("pending", (1.0, 0.0)).text.endswith("now 0")
    assert draw("pending", (None, None)).text == "pending in the last hour: not observed"


def test_a_watcher_keeps_what_it_has_seen(monkeypatch):
    monkeypatch.setattr(watcher, "Cluster", lambda *settings: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(watcher, "read_snapshot", lambda *_: seen(published()))
    log = SimpleNamespace(read=lambda cluster: reported(), unread=list)
    monkeypatch.setattr(watcher, "ReportLog", lambda: log)
    watching = watcher.Watcher("127.0.0.1:1", "t", {})
    watching.start()
    try:
        deadline_s = time.monotonic() + stretched(30)
        while not (lines := watching.state().lines):
            assert time.monotonic() < deadline_s, watching.state().error
            time.sleep(0.01)
    finally:
        watching.stop()
    assert (lines["pending"][-1], lines["lag of count"][-1]) == (3, 8)
    assert "acked" not in lines


def test_the_page_shows_pending_acked_failed_and_the_lag_of_each_bolt():
    topology = published()
    history = History()
    status = make_status(seen(topology), reported())
    for second in range(3):
        history.add({**figures_of(status), "acked": 7.0, "failed": 0.0}, BEGAN_S + second * BUCKET_S)
    values = status_values(PageState(status, topology, None, 1.0, history.lines()))
    common = {"topology": "t", "here": "status", "twin": "", "live": True, "actions": False, "several": False}
    window = {"window": "10m", "windows": WINDOWS_S}
    page = render(make_environment(), "status.html", **common, **window, **values)
    shown = re.findall(r'<svg class="spark[^>]*aria-label="([^"]*)"', page)
    names = [text.partition(" in the last hour")[0] for text in shown]
    assert names == ["acked/s", "failed/s", "pending", "lag of count", "lag of sum"]
    assert make_sparks({}) == {}
