"""Several topologies on one page: an index, a place for each, and one login for all."""

import dataclasses
import re

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from acktree.console.commands.running import ui
from acktree.console.page.app import StatusPage
from acktree.console.page.routes.index_page import STATES, line_of
from acktree.console.page.serving.frame import Frame, PageSettings
from acktree.console.page.serving.watcher import PageState
from acktree.console.view.documents import WindowFigures
from acktree.console.view.records.dead_letters import NewestDeadLetters
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from acktree.core.reports.stats import Report
from console.test_page import TOKEN, published, reported, seen

NOW_MS = 1_700_000_000_000
LINKS = re.compile('(?:href|action)="(/[^"]*)"')


class FixedWatcher:
    """Has a status, and looks at nothing."""

    def __init__(self, state):
        self.fixed = state

    def state(self):
        return self.fixed


def state(name, error=None, **changes):
    topology = published(name)
    status = dataclasses.replace(make_status(seen(topology), reported()), **changes)
    return PageState(status, topology, error, 1.0)


def page(token=None, **states):
    made = StatusPage(*(PageSettings("127.0.0.1:1", name, {}, token, True) for name in states))
    for each in made.topologies:
        each.watcher = FixedWatcher(states[each.name])
    return TestClient(made.make_app(), base_url="http://localhost", follow_redirects=False)


def links(text):
    return [link.replace("&amp;", "&") for link in LINKS.findall(text)]


def test_the_index_lists_each_topology_and_first_those_that_need_attention():
    calm = state("calm", stuck=())
    states = {"calm": calm, "stuck": state("stuck"), "gone": PageState(None, None, "is not published", 3.0)}
    client = page(**states)
    text = client.get("/").text
    names = re.findall('<a href="/t/([a-z]+)/">', text)
    assert names == ["stuck", "gone", "calm"]
    assert "is not published" in text
    found = {each["topology"]: each for each in client.get("/topologies.json").json()["topologies"]}
    assert {name: each["state"] for name, each in found.items()} == {
        "calm": "incomplete",
        "stuck": "stuck",
        "gone": "unknown",
    }
    assert found["calm"]["missing"] == ["bolt count", "bolt sum", "acker"]
    assert (found["calm"]["pending"], found["calm"]["dead_letters"]) == (3, 2)
    assert found["calm"]["oldest"]["offset"] == 5
    assert found["gone"]["pending"] is None


def test_a_healthy_topology_is_shown_as_well_and_old_figures_as_old():
    reports = Reports()
    for role, component in (("spout", "lines"), ("bolt", "count"), ("bolt", "sum"), ("acker", "acker")):
        report = Report(role, component, f"{component}-0", NOW_MS, {})
        reports.add_record(report.encode(), NOW_MS)
    status = make_status(seen(published()), reports)
    windows = {"10m": WindowFigures(emitted=9, acked=5, failed=4)}
    spouts = tuple(dataclasses.replace(each, windows=windows) for each in status.spouts)
    status = dataclasses.replace(status, stuck=(), spouts=spouts)
    line = line_of("t", PageState(status, published(), None, 1.0))
    assert (line.state, line.missing, line.why, line.failed) == ("well", (), "", 4)
    assert line_of("t", PageState(status, published(), "no broker answers", 1.0)).state == "old"
    assert line_of("t", PageState(status, published(), None, 61.0)).state == "old"
    assert {"well", "old"} < set(STATES)


def test_every_link_of_a_topology_leads_to_its_own_pages(monkeypatch):
    async def read(frame, query):
        return query(None) if frame is None else NewestDeadLetters((), False, ("lines",))

    monkeypatch.setattr(Frame, "read", read)
    client = page(one=state("one"), other=state("other"))
    places = ["/t/one/", "/t/one/dead-letters", "/t/one/trace", "/t/one/replay", "/t/one/nothing"]
    for place in places:
        answer = client.get(place)
        assert (answer.status_code == 404) == place.endswith("nothing"), place
        found = links(answer.text)
        assert "/t/" in found
        assert "/t/one/trace" in found
        assert [each for each in found if not each.startswith(("/t/one/", "/static/", "/login"))] == ["/t/"]
    assert client.get("/t/").headers["location"] == "/"
    assert client.get("/t/one/status.json").json()["topology"] == "one"
    assert client.get("/t/other/status.json").json()["topology"] == "other"
    for nothing in ("/status.json", "/trace", "/t/third/", "/t/third/status.json"):
        assert client.get(nothing).status_code == 404, nothing


def test_one_topology_has_the_server_to_itself():
    client = page(one=state("one"))
    assert client.get("/status.json").json()["topology"] == "one"
    assert "/pending" in links(client.get("/").text)
    for nothing in ("/t/one/", "/t/", "/topologies.json"):
        assert client.get(nothing).status_code == 404, nothing


def test_one_login_is_for_all_topologies_and_nothing_is_shown_without_it():
    client = page(TOKEN, one=state("one"), other=state("other"))
    for place in ("/", "/t/", "/t/one/", "/t/other/trace", "/t/third/"):
        answer = client.get(place)
        assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login")
    for twin in ("/topologies.json", "/t/one/status.json"):
        assert client.get(twin).status_code == 401
    wanted = client.get("/t/one/trace").headers["location"]
    answer = client.post(wanted, data={"token": TOKEN})
    assert answer.headers["location"] == "/t/one/trace"
    for place in ("/", "/t/one/", "/t/other/trace", "/topologies.json"):
        assert client.get(place).status_code == 200, place


def test_the_health_of_a_server_of_several_topologies_names_each_error():
    client = page(TOKEN, one=state("one"), other=state("other", "no broker answers"))
    assert client.get("/health").json() == {"alive": True}
    token = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/health", headers=token).json() == {
        "alive": True,
        "error": "no broker answers",
        "errors": {"one": None, "other": "no broker answers"},
    }


@pytest.mark.parametrize(
    ("flags", "served"),
    [
        (["--topology", "b"], ["b"]),
        (["--topology", "b", "--topology", "a", "--topology", "b"], ["b", "a"]),
        (["--all"], ["a", "b", "c"]),
    ],
)
def test_the_command_serves_the_topologies_that_its_flags_name(flags, served, monkeypatch):
    monkeypatch.setattr(ui, "all_published", lambda bootstrap, settings: [published(name) for name in "abc"])
    assert serve(flags, monkeypatch) == (0, served)


@pytest.mark.parametrize("flags", [[], ["--all", "--topology", "a"], [f"--topology=t{n}" for n in range(51)]])
def test_the_command_refuses_what_it_cannot_show(flags, monkeypatch):
    assert serve(flags, monkeypatch) == (2, [])


def test_a_cluster_without_topologies_is_reported_in_one_sentence(monkeypatch):
    monkeypatch.setattr(ui, "all_published", lambda bootstrap, settings: [])
    with pytest.raises(ui.UnknownTopology, match="no topology is published"):
        ui._names((), True, "127.0.0.1:1", {})


def serve(flags, monkeypatch):
    names = []
    monkeypatch.setattr(ui, "make_admin", lambda bootstrap, settings: None)
    monkeypatch.setattr(
        ui, "StatusPage", lambda *settings: names.extend(each.topology for each in settings) or NoPage()
    )
    monkeypatch.setattr(ui.uvicorn.Server, "run", lambda server, sockets: sockets[0].close())
    return CliRunner().invoke(ui.ui, [*flags, "--port", "0", "-b", "127.0.0.1:1"]).exit_code, names


class NoPage:
    def make_app(self):
        return None
