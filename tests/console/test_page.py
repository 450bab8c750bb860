"""The page without a broker: who may see it, what it says when the broker is away, and that it escapes."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.testclient import TestClient

from acktree.console.devbroker import ports
from acktree.console.page.app import StatusPage
from acktree.console.page.pictures.bars import WIDTH, bar
from acktree.console.page.pictures.graph import make_graph
from acktree.console.page.serving.access import TokenNeeded, read_token
from acktree.console.page.serving.frame import Frame, PageSettings
from acktree.console.page.serving.rendering import make_environment, render
from acktree.console.view.cluster import CommittedOffset, GroupStatus, OffsetRange
from acktree.console.view.documents import PartitionStatus
from acktree.console.view.records.trace import Trace, state_of
from acktree.console.view.records.traced_dead_letters import DeadLetterSummary
from acktree.console.view.records.tree import At, TracedEmission, TraceResult
from acktree.console.view.reports import WINDOWS_S, Reports
from acktree.console.view.snapshot import Snapshot
from acktree.console.view.status import make_status
from acktree.core.kafka import clients
from acktree.core.reports.stats import Report
from acktree.core.topology.file import BoltTable, SpoutTable
from acktree.core.topology.registry import Published, Slot

TOKEN = "a-token-that-is-long-enough"
HOSTILE = "<img src=x onerror=alert(1)>"


def page(token=None, allow_actions=False, topology="t", **more):
    (port,) = ports.free_ports(1)
    settings = PageSettings(f"127.0.0.1:{port}", topology, {}, token, allow_actions, **more)
    return TestClient(StatusPage(settings).make_app(), base_url="http://localhost", follow_redirects=False)


def test_the_page_reports_an_unreachable_broker_and_keeps_running():
    client = page()
    answer = client.get("/")
    assert answer.status_code == 200
    assert "Nothing is known about topology t yet" in answer.text
    assert client.get("/health").json()["alive"] is True
    assert client.get("/status.json").json()["error"]


@pytest.mark.parametrize("path", ["/pending", "/dead-letters"])
def test_a_page_that_needs_the_broker_reports_that_it_is_unreachable(path, monkeypatch):
    monkeypatch.setattr(clients, "BROKER_TIMEOUT_S", 0.5)  # nobody is there, however long it waits
    client = page()
    answer = client.get(path)
    assert (answer.status_code, "The broker is not answering" in answer.text) == (503, True)
    assert "no Kafka broker answers" in answer.text


@pytest.mark.parametrize("path", ["/dead-letters/x/0", f"/dead-letters/0/{'9' * 5_000}.json"])
def test_a_dead_letter_with_a_malformed_number_is_not_found(path):
    answer = page().get(path)
    assert (answer.status_code, "must be a whole number" in answer.text) == (404, True)


def test_without_a_token_only_loopback_host_names_are_served():
    client = page()
    for host in ("localhost", "127.0.0.1:9461", "[::1]:80", "localhost:1"):
        assert client.get("/", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:9461", "127.0.0.1.evil.example", "localhost.evil.example", ""):
        assert client.get("/", headers={"host": host}).status_code == 403, host


def test_with_a_token_nothing_is_shown_without_it():
    client = page(TOKEN)
    for path in ("/", "/pending", "/trace", "/dead-letters", "/nothing"):
        answer = client.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].partition("?")[0] == "/login"
    for path in ("/status.json", "/trace.json"):
        assert client.get(path).status_code == 401
    for wrong in ("Bearer wrong", "Basic " + TOKEN, "Bearer", ""):
        assert client.get("/status.json", headers={"authorization": wrong}).status_code == 401
    assert client.get("/status.json", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "x/login?", "x/static/?", "x/health?", "x/login#"])
@pytest.mark.parametrize(
    "path", ["/status.json", "/", "/replay", "/loginx", "/healthy", "/static", "//login"]
)
def test_no_host_or_path_that_looks_public_bypasses_the_token(host, path, monkeypatch):
    """Starlette before 1.0.1 makes the path of ``request.url`` of the Host header."""

    def from_host(request):
        return URL(f"http://{request.headers['host']}{request.scope['path']}")

    monkeypatch.setattr(Request, "url", property(from_host))
    answer = page(TOKEN, allow_actions=True).get(path, headers={"host": host})
    assert answer.status_code in (303, 401)


@pytest.mark.parametrize(("token", "host"), [(TOKEN, "localhost"), (None, "evil.example")])
def test_the_health_of_the_page_reveals_nothing_else_to_strangers(token, host):
    answer = page(token).get("/health", headers={"host": host})
    assert (answer.status_code, answer.json()) == (200, {"alive": True})


def test_the_token_is_given_once_at_the_login():
    client = page(TOKEN)
    wrong = client.post("/login", data={"token": "wrong"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
    right = client.post("/login", data={"token": TOKEN})
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/").status_code == 200


def test_a_link_to_a_page_survives_the_login():
    client = page(TOKEN)
    wanted = "/trace?topic=lines%26more&partition=0&offset=7"
    login = client.get(wanted).headers["location"]
    (action,) = re.findall('action="([^"]*)"', client.get(login).text)
    wrong = client.post(html.unescape(action), data={"token": "wrong"})
    (action,) = re.findall('action="([^"]*)"', wrong.text)
    assert client.post(html.unescape(action), data={"token": TOKEN}).headers["location"] == wanted


@pytest.mark.parametrize(
    "foreign", ["//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", ""]
)
def test_the_login_redirects_to_no_other_site(foreign):
    answer = page(TOKEN).post("/login", params={"next": foreign}, data={"token": TOKEN})
    assert answer.headers["location"] == "/"


def test_serving_beyond_loopback_needs_a_token(tmp_path, monkeypatch):
    monkeypatch.delenv("ACKTREE_UI_TOKEN", raising=False)
    assert read_token(None, "127.0.0.1") is None
    for host in ("0.0.0.0", "::", "10.1.2.3", "example.org"):
        with pytest.raises(TokenNeeded, match="is not loopback"):
            read_token(None, host)
    monkeypatch.setenv("ACKTREE_UI_TOKEN", TOKEN)
    assert read_token(None, "0.0.0.0") == TOKEN
    (tmp_path / "token").write_text("from-a-file-123456\n")
    assert read_token(tmp_path / "token", "0.0.0.0") == "from-a-file-123456"
    (tmp_path / "short").write_text("short\n")
    for file in (tmp_path / "short", tmp_path / "nothing"):
        with pytest.raises(TokenNeeded, match=r"at least 16|cannot read"):
            read_token(file, "127.0.0.1")


def test_every_response_forbids_foreign_scripts_and_frames():
    client = page()
    for path in ("/", "/nothing", "/static/style.css", "/status.json"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.names = set()
        self.attributes = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


def published(name="t", topic="lines"):
    slot = Slot(slot=0, spout="lines", topic=topic, topic_id="id", partition=0)
    return Published.model_construct(
        name=name,
        ackers=1,
        message_timeout_s=30.0,
        orphan_timeout_s=300.0,
        control_retention_s=21_600.0,
        spouts={
            "lines": SpoutTable.model_construct(
                topics=(topic,) if topic else (), emits=("words",), tasks=1, max_pending=9
            )
        },
        bolts={
            "count": BoltTable.model_construct(reads=("words",), emits=("words", "out"), exactly_once=False),
            "sum": BoltTable.model_construct(reads=("out",), emits=(), exactly_once=False),
        },
        version=1,
        spout_tasks={"lines": (0,)},
        slots=(slot,),
    )


def seen(topology):
    slot = topology.slots[0]
    places = {(slot.topic, 0): 10, ("words", 0): 20, (f"{topology.name}.dead-letter", 0): 4}
    return Snapshot(
        topology,
        1_700_000_000_000,
        dict.fromkeys(places, 0),
        places,
        {topology.group_of("count"): GroupStatus("STABLE", ("a",))},
        {(slot.topic, 0): CommittedOffset(5, "")},
        [slot],
        0,
        {"count": {("words", 0): CommittedOffset(12, "")}, "sum": {}},
        [f"a note with {HOSTILE}"],
        dead_letters=2,
    )


def reported(*others, held_s=4.5, **more):
    """Return what processes report: the spout of ``seen``, which has emitted three records, and others."""
    emitted = {"frontier.lines.0": 5, "next.lines.0": 8, "pending.lines.0": 3}
    spout = {**emitted, "held_s.lines.0": held_s, **more}
    found = Reports()
    for each in (Report("spout", "lines", "lines-0", 1_700_000_000_000, spout), *others):
        found.add_record(each.encode(), each.time_ms)
    return found


def test_html_in_names_and_messages_is_escaped():
    topology = published(HOSTILE, HOSTILE)
    status = make_status(seen(topology), Reports())
    text = render(
        make_environment(),
        "status.html",
        topology=HOSTILE,
        status=status,
        old=HOSTILE,
        since_s=3.0,
        graph=make_graph(topology, status),
        bars=[bar(each, True) for each in status.partitions],
        sparks={},
        held_stuck=True,
        silent_s=20.0,
        silent_shown_s=600.0,
        window="10m",
        windows=WINDOWS_S,
        several=False,
        here="status",
        twin="/status.json",
        live=True,
        actions=False,
    )
    elements = Elements(text)
    assert "img" not in elements.names
    assert not {name for name in elements.attributes if name.startswith("on") or name == "style"}
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") >= 5


def test_a_status_computes_lag_from_offsets_alone():
    status = make_status(seen(published()), Reports())
    (partition,) = status.partitions
    assert (partition.frontier, partition.next_offset, partition.pending, partition.lag) == (5, None, None, 5)
    bolts = {bolt.name: (bolt.lag, bolt.members) for bolt in status.bolts}
    assert bolts == {"count": (8, 1), "sum": (0, 0)}
    assert (status.totals.dead_letters, status.totals.pending) == (2, None)
    assert [each.kind for each in status.stuck] == ["no-spout"]


def test_the_number_of_pending_records_is_the_one_that_the_spout_reports():
    status = make_status(seen(published()), reported())
    (partition,) = status.partitions
    assert (partition.frontier, partition.next_offset, partition.pending, partition.lag) == (5, 8, 3, 5)
    assert (status.totals.pending, status.totals.oldest_pending_s) == (3, 4.5)


def test_a_loop_in_the_topology_is_drawn_once():
    topology = published()
    graph = make_graph(topology, make_status(seen(topology), Reports()))
    names = [(node.kind, node.name) for node in graph.nodes]
    assert sorted(names) == sorted(set(names))
    assert len(names) == 6
    assert len(graph.lines) == 6
    assert all(node.x >= 0 and node.y >= 0 for node in graph.nodes)


def test_a_bolt_with_a_stuck_worker_looks_stuck():
    reports = Reports()
    for instance, stalled_s in (("count@a:7", 301.0), ("sum@a:8", 1.0)):
        values = {"stalled_s": stalled_s, "stuck_after_s": 300.0}
        report = Report("bolt", instance.partition("@")[0], instance, 1_700_000_000_000, values)
        reports.add_record(report.encode(), report.time_ms)
    topology = published()
    graph = make_graph(topology, make_status(seen(topology), reports, after_s=300.0))
    states = {node.name: node.state for node in graph.nodes if node.kind == "bolt"}
    assert states == {"count": "stuck", "sum": ""}


@pytest.mark.parametrize(
    ("frontier", "emitted", "above", "end"),
    [
        (0, 0, 0, 0),
        (5, 5, 0, 5),
        (5, 8, 1, 10),
        (0, 3, 0, 1_000_000),
        (10**12, 10**12 + 3, 2, 10**12 + 9),
        (None, None, 0, 7),
    ],
)
def test_the_parts_of_a_bar_do_not_overlap_and_none_is_invisible(frontier, emitted, above, end):
    pending = (emitted or 0) - (frontier or 0) - above
    partition = PartitionStatus(
        "s", "t", 0, 0, 0, 0, end, frontier, emitted, above, pending, 0, held_by=None, held_s=None
    )
    *parts, edge = bar(partition, False)
    assert edge.kind == "edge"
    x = 0.0
    for part in parts:
        assert part.x == pytest.approx(x, abs=0.2)
        assert part.width >= 5
        x += part.width
    assert x <= WIDTH + 0.5
    assert {part.kind for part in parts} == {
        kind
        for kind, there in (
            ("done", frontier),
            ("above", above),
            ("pending", pending),
            ("left", end - (emitted or 0)),
        )
        if there
    }


def test_the_page_works_without_javascript():
    text = page().get("/").text
    scripts = re.findall(r"<script[^>]*>", text)
    assert scripts == ['<script src="/static/live.js" defer>']
    assert "reload to refresh" in text


def trace_of(monkeypatch, *emissions, dead_letters=()):
    """Return the trace page of a record with these emissions."""
    trace = Trace(
        "t", "lines", "lines", 0, 7, 0, "pending", 1.0, 5, 0, 9, emissions, dead_letters, 0, 3, 99, 0.1, ()
    )

    async def read(frame, query):
        return trace

    monkeypatch.setattr(Frame, "read", read)
    return page().get("/trace?topic=lines&partition=0&offset=7").text


def emission(attempt, state, reason):
    at = At("t.ack", 0, 7, 1_700_000_000_000)
    result = TraceResult(state, 0, "count", reason, at) if state == "failed" else None
    text = "the tree failed" if result else "it waits"
    return TracedEmission("00", 1, attempt, 0, 1, 0, None, (), (), result, "0", "certain", state, text)


def test_a_trace_begins_with_the_current_attempt_and_its_failure(monkeypatch):
    text = trace_of(monkeypatch, emission(0, "failed", "first reason"), emission(1, "failed", HOSTILE))
    assert text.index("Replay, attempt 1") < text.index("First emission")
    assert text.index("the latest of 2 attempts") < text.index("an earlier attempt")
    first, second = re.findall(r'<div class="banner bad">(.*?)</div>', text)
    assert first.startswith(f"<strong>{html.escape(HOSTILE)}</strong>")
    assert second.startswith("<strong>first reason</strong>")


def test_an_open_attempt_says_why_the_previous_one_failed(monkeypatch):
    text = trace_of(monkeypatch, emission(0, "failed", "no city\x1b[2J"), emission(1, "open", None))
    banner = re.search(r'<div class="banner ">(.*?)</div>', text)[1]
    assert "it waits" in banner
    assert "The attempt before: failed, no city\\x1b[2J." in banner


def test_an_emission_after_a_dead_letter_is_a_replay(monkeypatch):
    text = trace_of(monkeypatch, emission(0, "failed", "why"), emission(0, "open", None))
    assert text.index("<h2>Replay ") < text.index("<h2>First emission ")
    letter = DeadLetterSummary(0, 0, 1_600_000_000_000, "10", "why")
    text = trace_of(monkeypatch, emission(0, "failed", "why"), dead_letters=(letter,))
    assert "First emission" not in text


@pytest.mark.parametrize(
    ("dead_lettered_ms", "acked", "state"),
    [([], True, "done"), ([1], True, "done"), ([1, 3], True, "dead-lettered"), ([1], False, "dead-lettered")],
)
def test_a_record_is_done_once_a_replay_of_its_dead_letter_was_acked(dead_lettered_ms, acked, state):
    """The replay is acked 2 ms later than one."""
    letters = [DeadLetterSummary(0, 0, time_ms, "10", "why") for time_ms in dead_lettered_ms]
    at = At("t.ack", 0, 7, 2)
    found = replace(
        emission(0, "acked", None), result=TraceResult("acked", 0, None, None, at) if acked else None
    )
    slot = published().slots[0]
    assert state_of(slot, 7, OffsetRange(0, 9), True, (found,), letters) == state


@pytest.mark.parametrize(
    ("log_start", "emitted", "state"),
    [
        (7, [], "done"),
        (8, [], "expired"),
        (8, ["failed"], "expired"),
        (8, ["failed", "acked"], "done"),
        (8, ["done, not yet reported"], "done"),
    ],
)
def test_a_record_that_is_gone_is_done_only_if_an_emission_says_so(log_start, emitted, state):
    """The spout also commits records that were removed before they were read."""
    slot, found = published().slots[0], tuple(emission(0, each, None) for each in emitted)
    assert state_of(slot, 7, OffsetRange(log_start, 9), True, found, []) == state


def test_an_open_first_emission_mentions_no_other(monkeypatch):
    text = trace_of(monkeypatch, emission(0, "open", None))
    assert "attempt before" not in text
    assert "latest of" not in text
