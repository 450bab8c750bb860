"""How the pages look in Chromium: contrast of every text, in light and dark, and on a phone."""

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from acktree.console.page import app
from acktree.console.page.app import StatusPage
from acktree.console.page.routes import pending_page, trace_page
from acktree.console.page.serving.frame import Frame, PageSettings
from acktree.console.page.serving.watcher import PageState
from acktree.console.view.records.trace import Trace
from acktree.console.view.records.tree import (
    At,
    ControlEntry,
    TracedEmission,
    TracedTuple,
    TraceResult,
    TupleReader,
)
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from acktree.console.view.wire_format import NO_SCHEMAS
from acktree.core.kafka.log_reader import Found, LogRange
from acktree.core.reports.stats import Report
from console.test_page import published, reported, seen
from console.test_page_in_chromium import PROBE, SCRIPT, visit
from console.test_page_of_several_topologies import FixedWatcher

NOW_MS = 1_700_000_000_000
LONG = "ValueError: no city of the name Castrop-Rauxel_an_der_Emscher_und_am_Kanal " + "x" * 90
PAGES = {
    "/": "topologies",
    "/t/stuck/": "stuck",
    "/t/stuck/pending": "pending",
    "/t/stuck/trace?topic=lines&partition=0&offset=5": "trace",
    "/t/stuck/dead-letters": "dead letters",
    "/t/stuck/dead-letters/0/1": "dead letter 0/1",
    "/t/stuck/replay": "replay",
    "/t/stuck/nothing": "Page not found",
    "/login": "token",
}
"""The title of each page."""

LOOK = """
const channel = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (text) => {
  const [r, g, b] = rgb(text).map((each) => channel(each / 255));
  return .2126 * r + .7152 * g + .0722 * b;
};
const opaque = (text) => text !== "none" && (rgb(text)[3] ?? 1) === 1;
const style = (node) => node.ownerDocument.defaultView.getComputedStyle(node);
const ground = (node) => {
  for (let each = node; each; each = each.parentElement) {
    const drawn = [...each.children].find((child) => child.tagName === "rect" && opaque(style(child).fill));
    if (each.closest("svg") && each.tagName === "g" && drawn) return style(drawn).fill;
    if (opaque(style(each).backgroundColor)) return style(each).backgroundColor;
  }
};
const pale = (page) => {
  const found = new Set();
  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.nodeValue.trim() || node.tagName === "title" || !node.getClientRects().length) {
      continue;
    }
    const color = node.closest("svg") ? style(node).fill : style(node).color;
    const [a, b] = [light(color), light(ground(node))].sort((x, y) => x - y);
    const ratio = (b + .05) / (a + .05);
    if (ratio < 4.5) found.add(`${node.tagName}.${node.getAttribute("class")} ${ratio.toFixed(2)}`);
  }
  return [...found];
};
const drawnSizes = (page) => [...page.querySelectorAll("svg text")].map(
  (each) => each.getScreenCTM().a * parseFloat(style(each).fontSize));
const open = async (place, width) => {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 844; frame.frameBorder = 0;
  const loaded = new Promise((resolve) => { frame.onload = resolve; });
  frame.src = place; document.body.append(frame); await loaded;
  const page = frame.contentDocument;
  const said = {pale: pale(page), width: page.documentElement.scrollWidth,
    title: page.title, type: Math.min(99, ...drawnSizes(page)),
    outside: [...page.querySelectorAll("header *, .legend *, h2, form *, .banner *, dl *")].filter(
      (each) => !each.closest(".card > table") && each.getBoundingClientRect().right > width + 1).map(
      (each) => `${each.tagName}.${each.className}`)};
  frame.remove();
  return said;
};
const said = {};
for (const place of PAGES) said[place] = [await open(place, 390), await open(place, 1280)];
return said;
"""


def a_trace():
    at = At("checked", 0, 7, NOW_MS)
    readers = [
        TupleReader(bolt, "0b" * 8, state, 5, 3 if state == "open" else None)
        for bolt, state in (("count", "done"), ("sum", "open"), ("geocode", "failed"), ("x", "not known"))
    ]
    tuples = tuple(
        TracedTuple("0c" * 8, At(topic, 0, n, NOW_MS), tuple(readers[n : n + 2]))
        for topic, n in (("words", 0), ("words", 1), ("out", 2), ("out", 3))
    )
    messages = (
        ControlEntry("ack", "count@a:7", "0f" * 8, None, at),
        ControlEntry("fail", "count@a:7", None, LONG, at),
    )
    result = TraceResult("failed", 0, "count@a:7", LONG, at)
    common = ("00" * 8, 1, 1, 0, 1, 0, None, messages, tuples)
    states = (("failed", result), ("open", None), ("timed out", TraceResult("timed out", 0, "", "", at)))
    emissions = tuple(
        TracedEmission(*common, result, "0", "certain", state, "the tree " + state)
        for state, result in states
    )
    return Trace(
        "stuck",
        "lines",
        "lines",
        0,
        5,
        0,
        "pending",
        61.0,
        5,
        0,
        9,
        emissions,
        (),
        0,
        3,
        99,
        0.1,
        ("a note",),
    )


def states():
    reports = Reports()
    facts = {"host": "worker-0.workers.default.svc.cluster.local", "pid": 7, "started_ms": NOW_MS - 9_000_000}
    failed = {"last_error": LONG, "last_error_ms": NOW_MS - 61_000}
    for role, component in (("spout", "lines"), ("bolt", "count"), ("acker", "acker")):
        age_ms = 60_000 if role == "bolt" else 0
        values = {**facts, **failed, "executed": 7, "busy_s": 600.0, f"root_age_s.{'0a' * 8}": 2.0}
        report = Report(role, component, f"{component}@worker-0.workers:7-0a0b", NOW_MS - age_ms, values)
        reports.add_record(report.encode(), report.time_ms)
    status = make_status(seen(published()), reports)
    lines = dict.fromkeys(("acked", "failed", "pending", "lag of count"), (None, 1.0, 5.0, 0.0) * 30)
    return {
        "stuck": PageState(status, published(), None, 1.0, lines),
        "away": PageState(status, published(), "no Kafka broker answers", 61.0),
        "never": PageState(None, None, "topology never is not published", 1.0),
        "calm": PageState(dataclasses.replace(status, stuck=()), published(), None, 1.0),
    }


class DeadRecord:
    """A record of the dead-letter topic."""

    def __init__(self, offset):
        self._offset = offset

    def partition(self):
        return 0

    def offset(self):
        return self._offset

    def timestamp(self):
        return 1, NOW_MS + self._offset

    def key(self):
        return b"key"

    def value(self):
        return b"v" * 300

    def headers(self):
        texts = {"attempts": "3", "cause": "FAILED", "task": "count@worker-0.workers:7-0a0b", "reason": LONG}
        ours = {"origin": "lines/0/5", **texts} if self._offset % 2 else {}
        return [(f"acktree-{name}", text.encode()) for name, text in ours.items()] + [("h", b"x" * 200)]


class DeadLetterCluster:
    """As much of a cluster as the pages ask for: a topology and its dead letters."""

    topology = published()
    schemas = NO_SCHEMAS

    def refresh(self):
        pass

    def partitions(self, topics):
        return [(topic, 0) for topic in topics]

    def starts(self, places):
        return dict.fromkeys(places, 0)

    def ends(self, places):
        return dict.fromkeys(places, 80)

    def scan(self, spans, *, whole=False):
        for place, span in spans.items():
            records = [DeadRecord(offset) for offset in range(span.start, span.end)]
            yield LogRange(place, Found.READ, span.start, span.end, records)

    def record(self, topic, partition, offset):
        return DeadRecord(offset)


@contextmanager
def serving(monkeypatch) -> Iterator[str]:
    """Serve all pages without a broker, and a visitor's script."""
    monkeypatch.setattr(app, "_HEADERS", {})  # else no frame may show a page
    monkeypatch.setattr(trace_page, "find_trace", lambda cluster, target, **limits: a_trace())
    monkeypatch.setattr(pending_page, "read_with_reports", lambda cluster: (seen(published()), reported()))

    async def read(frame, query):
        return query(DeadLetterCluster())

    monkeypatch.setattr(Frame, "read", read)
    pages = StatusPage(*(PageSettings("127.0.0.1:1", name, {}, None, True) for name in states()))
    for each in pages.topologies:
        each.watcher = FixedWatcher(states()[each.name])

    async def visitor(request: Request) -> Response:
        return HTMLResponse(f"<!doctype html><html><head>{PROBE}</head><body></body></html>")

    async def probe(request: Request) -> Response:
        script = LOOK.replace("PAGES", str(list(PAGES)))
        return Response(SCRIPT.replace("VISITOR", script), media_type="text/javascript")

    routes = [Route("/visit", visitor), Route("/probe.js", probe), Mount("/", pages.make_app())]
    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/visit"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("scheme", ["1", "0"], ids=["light", "dark"])
def test_every_page_has_contrast_and_fits_a_phone(scheme, tmp_path, monkeypatch):
    with serving(monkeypatch) as url:
        looks = visit(url, tmp_path, f"--blink-settings=preferredColorScheme={scheme}")
    titles = {place: desk["title"].partition(" · ")[0] for place, (_, desk) in looks.items()}
    assert list(titles.items()) == list(PAGES.items())
    said = {}
    for place, (phone, desk) in looks.items():
        found = {
            "pale": {*phone["pale"], *desk["pale"]},
            "too wide": []
            if (phone["width"], desk["width"]) == (390, 1280)
            else [phone["width"], desk["width"]],
            "outside": phone["outside"],
            "too small": [size for size in (phone["type"], desk["type"]) if size < 11],
        }
        said[place] = {what: each for what, each in found.items() if each}
    assert said == {place: {} for place in PAGES}
