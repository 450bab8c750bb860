"""Operating a real topology: Spark, a worker and an acker on a broker, and a bolt that nobody runs.

Every tree waits for the bolt `audit`; one record is poison and becomes a dead letter. Command line and page
must say so, with the coordinates, and say that all is well once `audit` runs.
"""

import json
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from starlette.testclient import TestClient

import prerequisites
from acktree.console.demo.children import ChildProcess
from acktree.console.main import main
from acktree.console.page.app import StatusPage
from acktree.console.page.serving.frame import PageSettings
from acktree.core.reports.stats import OLDEST_ROOTS
from deadlines import stretched

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.xdist_group("operating")]

DEADLINE_S = stretched(240)
METRICS = ("--metrics-port", "0")
POISON = "<script>document.title='run'</script>"
LINES = [*(f"line number {n}" for n in range(40)), "poison"]
TOPOLOGY = """
name = "{name}"
ackers = 2
message_timeout_s = 120
[spouts.lines]
topics = ["{name}.source"]
emits = ["{name}.words"]
max_attempts = 2
retry_initial_s = 0.1
retry_max_s = 0.2
[bolts.upper]
reads = ["{name}.words"]
emits = ["{name}.loud"]
[bolts.audit]
reads = ["{name}.loud"]
"""
BOLTS = f'''
from acktree.producers import BasicBolt

class Upper(BasicBolt):
    name = "upper"
    def execute(self, tup, emit):
        if b"poison" in tup.value:
            raise ValueError("{POISON}")
        emit(tup.value.upper())

class Audit(BasicBolt):
    name = "audit"
    def execute(self, tup, emit):
        pass
'''


@dataclass
class RunningPipeline:
    """The pipeline, with verbs for what an operator does."""

    bootstrap: str
    name: str
    children: dict[str, ChildProcess]

    @property
    def source(self) -> str:
        return f"{self.name}.source"

    def acktree(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--topology", self.name, "-b", self.bootstrap])

    def json(self, *arguments: str) -> Any:
        done = self.acktree(*arguments, "--format", "json")
        if not isinstance(done.exception, SystemExit | None):
            raise done.exception  # as exit code 1 it would pass for "stuck"
        assert done.exit_code in (0, 1), done.output
        return json.loads(done.stdout)


def until(holds: Any, what: str) -> Any:
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"{what} did not come true"
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def running(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    name, folder = f"t{uuid.uuid4().hex[:10]}", tmp_path_factory.mktemp("operate")
    (folder / "bolts.py").write_text(BOLTS)
    (folder / "topology.toml").write_text(TOPOLOGY.format(name=name))
    shutil.copy(Path(__file__).parents[2] / "examples" / "wordcount" / "split_lines.py", folder)
    topic = f"{name}.source"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    applied = CliRunner().invoke(
        main, ["topology", "apply", str(folder / "topology.toml"), "-b", bootstrap, "--format", "json"]
    )
    assert json.loads(applied.stdout)["version"] == 1
    producer = Producer({"bootstrap.servers": bootstrap})
    for line in LINES:
        producer.produce(topic, line)
    assert producer.flush(30) == 0
    common = ["--topology", name, "-b", bootstrap]
    commands = {
        "acker": ["acker", "run", *common],
        "upper": ["bolt", "run", "bolts:Upper", *common, *METRICS],
        "spark": [
            "spark",
            "run",
            "split_lines:words",
            "--spout",
            "lines",
            "--trigger",
            "500ms",
            *common,
            *METRICS,
        ],
        "audit": ["bolt", "run", "bolts:Audit", *common],
    }
    with ExitStack() as stack:
        children = {
            child: ChildProcess(child, command, folder, folder / f"{child}.log", {"PYTHONUNBUFFERED": "1"})
            for child, command in commands.items()
        }
        for child, process in children.items():
            stack.callback(process.stop)
            if child != "audit":
                process.start()
        children["acker"].wait_ready(lambda: None)
        made = RunningPipeline(bootstrap, name, children)
        until(lambda: made.json("dead-letter", "list")["dead_letters"], "the dead letter")
        until(lambda: _open_tuples(made), "a tree that waits for audit")
        yield made


def _open_tuples(running: RunningPipeline) -> Any:
    emissions = running.json("trace", running.source, "0", "7")["emissions"]
    return emissions and len(emissions[-1]["tuples"]) == 6


@pytest.fixture(scope="module")
def page(running: RunningPipeline) -> Iterator[TestClient]:
    settings = PageSettings(running.bootstrap, running.name, {})
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        until(lambda: client.get("/status.json").json().get("spouts"), "a first look")
        yield client


def test_describe_reports_a_bolt_without_workers_and_exits_with_1(running: RunningPipeline) -> None:
    done = running.acktree("describe")
    assert done.exit_code == 1, done.output
    assert re.search(r"no-bolt +audit +\d+ tuples wait and group \S+ has no members", done.stdout)
    assert re.search(rf"{running.source} +0 ", done.stdout)
    status = running.json("describe")
    assert status["totals"]["pending"] == len(LINES) - 1
    assert status["totals"]["dead_letters"] == 1
    bolts = {bolt["name"]: bolt for bolt in status["bolts"]}
    assert (bolts["upper"]["members"], bolts["audit"]["members"]) == (1, 0)
    assert bolts["audit"]["lag"] == 3 * (len(LINES) - 1)
    (partition,) = status["partitions"]
    assert (partition["frontier"], partition["log_end"]) == (0, len(LINES))
    assert (partition["done_above"], partition["held_by"]["offset"]) == (1, 0)
    assert sum(acker["pending"] for acker in status["ackers"]) == len(LINES) - 1


def test_pending_records_are_listed_oldest_first_and_older_than_asks(running: RunningPipeline) -> None:
    document = running.json("pending", "list")
    found = document["pending"]
    assert OLDEST_ROOTS <= len(found) <= document["total"] == len(LINES) - 1
    assert (found[0]["offset"], found[0]["at_least_s"]) == (0, None), "what holds the frontier"
    ages = [each["at_least_s"] if each["age_s"] is None else each["age_s"] for each in found]
    assert ages == sorted(ages, reverse=True)
    assert {(each["state"], each["attempts"]) for each in found} == {("in flight", 1)}
    listed = running.acktree("pending", "list")
    head, first, *_ = listed.stdout.splitlines()
    assert head.split()[4:9] == ["AGE", "FIRST_EMISSION", "ATTEMPTS", "ROOT", "ROOT_AGE"]
    assert "unknown" not in first
    assert f"acktree trace --topology {running.name} {running.source} 0 0" in listed.stderr
    assert "bolt audit is" in listed.stderr
    assert running.acktree("pending", "list", "--older-than", "1ms").exit_code == 1
    later = running.acktree("pending", "list", "--older-than", "1d")
    assert (later.exit_code, len(later.stdout.splitlines())) == (0, 1)


def test_trace_names_the_open_edges_and_the_group_that_has_yet_to_read_them(running: RunningPipeline) -> None:
    trace = running.json("trace", running.source, "0", "7")
    assert (trace["state"], trace["frontier"]) == ("pending", 0)
    (emission,) = trace["emissions"]
    assert (emission["state"], emission["certainty"], emission["attempt"]) == ("open", "exact", 0)
    assert emission["init"]["at"]["topic"] == f"{running.name}.ack-init"
    stands = {
        (found["at"]["topic"].removeprefix(f"{running.name}."), reader["bolt"], reader["state"])
        for found in emission["tuples"]
        for reader in found["readers"]
    }
    assert stands == {("words", "upper", "done"), ("loud", "audit", "open")}
    text = running.acktree("trace", running.source, "0", "7").stdout
    assert "waits for bolt audit to ack" in " ".join(text.replace("│", " ").split())
    by_root = running.json("trace", "--root", emission["root"])
    assert (by_root["topic"], by_root["partition"], by_root["offset"]) == (running.source, 0, 7)


def test_trace_shows_both_emissions_of_the_poison_and_its_dead_letter(running: RunningPipeline) -> None:
    (dead_letter,) = running.json("dead-letter", "list")["dead_letters"]
    assert (dead_letter["source_offset"], dead_letter["attempts"], dead_letter["cause"]) == (40, 2, "FAILED")
    assert POISON in dead_letter["reason"]
    trace = running.json("trace", "--dead-letter", f"{dead_letter['partition']}/{dead_letter['offset']}")
    assert (trace["offset"], trace["state"]) == (40, "dead-lettered")
    assert [emission["result"]["kind"] for emission in trace["emissions"]] == ["failed", "failed"]
    assert [emission["attempt"] for emission in trace["emissions"]] == [0, 1]
    (failed,) = {
        reader["state"] for each in trace["emissions"] for t in each["tuples"] for reader in t["readers"]
    }
    assert failed == "failed"
    shown = running.acktree("dead-letter", "show", str(dead_letter["offset"]))
    assert "poison" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trace", "nothing", "0", "1"), "does not read nothing/0"),
        (("trace", "--root", "ffffffffffffffff"), "is of slot"),
        (("trace", "--dead-letter", "999"), "holds no record at offset 999"),
        (("dead-letter", "show", "3/9"), "holds no record at 9"),
    ],
)
def test_an_unknown_object_is_reported_in_one_sentence(
    running: RunningPipeline, arguments: Any, words: str
) -> None:
    done = running.acktree(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unwritten_or_unknown_record_has_a_state(running: RunningPipeline) -> None:
    assert running.json("trace", running.source, "0", "999")["state"] == "not written yet"


def test_the_page_and_its_json_agree_with_the_command_line(
    running: RunningPipeline, page: TestClient
) -> None:
    until(lambda: page.get("/status.json").json()["ackers"], "the reports")
    twin, described = page.get("/status.json").json(), running.json("describe")
    assert set(described) < set(twin)
    for key in ("spouts", "partitions", "bolts", "ackers"):
        assert [set(each) for each in twin[key]] == [set(each) for each in described[key]]
    html = page.get("/").text
    for words in ("audit", "upper", "has no members", "tuples wait"):
        assert words in html
    partitions = html.partition('id="partitions"')[2].partition("</section>")[0]
    row = partitions.partition(f"<td>{running.source}/0</td>")[2].partition("</tr>")[0]
    assert f"/trace?topic={running.source}&amp;partition=0&amp;offset=0" in row, "what holds the frontier"
    assert "in flight" in row


@pytest.mark.parametrize("path", ["/trace", "/dead-letters", "/dead-letters/0/0"])
def test_html_in_a_failure_reason_is_escaped(running: RunningPipeline, page: TestClient, path: str) -> None:
    question = {"topic": running.source, "partition": 0, "offset": 40} if path == "/trace" else {}
    answer = page.get(path, params=question)
    assert answer.status_code == 200
    assert "&lt;script&gt;document.title=" in answer.text
    assert "<script>document" not in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_the_trace_page_draws_the_tree_that_its_json_holds(
    running: RunningPipeline, page: TestClient
) -> None:
    question = {"topic": running.source, "partition": 0, "offset": 7}
    html = page.get("/trace", params=question).text
    assert "waits for bolt audit to ack" in html
    assert html.count("chip-open") == 3
    assert html.count("chip-done") == 3
    twin = page.get("/trace.json", params=question).json()
    assert twin["emissions"][0]["state"] == "open"
    assert '<th class="n">first emission</th>' in page.get("/pending").text

    def pending() -> list[object]:
        found = page.get("/pending.json", params={"older_than": "1ms", "limit": "5"}).json()["pending"]
        return list(found)

    until(lambda: len(pending()) == 5, "the ackers' reports of their oldest roots")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/nothing", 404),
        ("/trace?topic=nothing&partition=0&offset=1", 404),
        ("/trace?topic=x&partition=-1&offset=1", 404),
        ("/trace?topic=x&partition=0&offset=99999999999999999999999", 404),
        ("/trace?root=zz", 404),
        ("/trace?root=ffffffffffffffff", 404),
        ("/pending?older_than=soon", 404),
        ("/pending?limit=-1", 404),
        ("/?window=5m", 404),
        ("/dead-letters/0/99999", 404),
        ("/dead-letters/9/0", 404),
        ("/dead-letters/99999999999999999999/99999999999999999999999", 404),
    ],
)
def test_a_page_of_an_unknown_object_is_an_error(page: TestClient, path: str, code: int) -> None:
    answer = page.get(path)
    assert answer.status_code == code, answer.text
    assert "<header>" in answer.text
    bare, _, query = path.partition("?")
    if bare != "/":
        twin = page.get(f"{bare}.json?{query}")
        assert (twin.status_code, list(twin.json())) == (code, ["error"])


def test_invalid_records_on_the_stats_topic_are_counted_and_the_page_keeps_running(
    running: RunningPipeline, page: TestClient
) -> None:
    producer = Producer({"bootstrap.servers": running.bootstrap})
    for value in (b"\xff\x00", b"{}", b"<script>", None):
        producer.produce(f"{running.name}.stats", value)
    hostile = {"role": "bolt", "component": "<b>x</b>", "instance": "<i>", "time_ms": int(time.time() * 1000)}
    producer.produce(f"{running.name}.stats", json.dumps({**hostile, "values": {"executed": "<u>"}}))
    hostile |= {
        "role": "acker",
        "instance": "<b>root</b>",
        "values": {"root_age_s.<b>": 1, "pending": "many"},
    }
    producer.produce(f"{running.name}.stats", json.dumps(hostile))
    assert producer.flush(30) == 0
    until(lambda: page.get("/status.json").json()["invalid_reports"] == 4, "the count of invalid records")
    html = page.get("/").text
    assert "4 records of" in html
    assert "<b>root</b>" not in html
    assert "&lt;b&gt;root&lt;/b&gt;" in html


def dom_of(url: str, folder: Path) -> str:
    command = [
        prerequisites.program("chromium", "chromium-browser", "google-chrome"),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]
    command += [f"--user-data-dir={folder}", "--virtual-time-budget=6000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=stretched(120), check=True).stdout


def test_chromium_updates_the_page_and_runs_no_foreign_script(
    running: RunningPipeline, tmp_path: Path
) -> None:
    log = tmp_path / "ui.log"
    command = ["ui", "--topology", running.name, "-b", running.bootstrap, "--port", "0", "--format", "json"]
    child = ChildProcess("ui", command, tmp_path, log, {"PYTHONUNBUFFERED": "1"})
    child.start()
    try:
        child.wait_ready(lambda: None)
        (ready,) = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        url = ready["url"]
        shown = until(lambda: "has no members" in (dom := dom_of(url, tmp_path)) and dom, "the page")
        assert '<span id="live-state" class="live">live</span>' in shown
        poison = dom_of(f"{url}trace?topic={running.source}&partition=0&offset=40", tmp_path)
        assert "<title>trace" in poison
        assert "&lt;script&gt;document.title=" in poison
    finally:
        child.stop()


@pytest.mark.parametrize(
    ("child", "sample"),
    [
        ("upper", 'acktree_bolt_failed_total{bolt="upper",topology="NAME"} 2.0'),
        ("spark", 'acktree_spout_dead_lettered_total{spout="lines",task="0",topology="NAME"} 1.0'),
    ],
)
def test_every_process_serves_its_metrics(running: RunningPipeline, child: str, sample: str) -> None:
    log = running.children[child].log
    wanted = sample.replace("NAME", running.name)

    def is_shown() -> bool:
        for url in re.findall(r"metrics (http://127\.0\.0\.1:\d+/metrics)", log.read_text()):
            with suppress(httpx2.TransportError):  # a reader that Spark made and let go has closed its page
                if wanted in httpx2.get(url).text:
                    return True
        return False

    until(is_shown, wanted)


def test_the_page_exports_expected_processes_beside_running_ones(
    running: RunningPipeline, tmp_path: Path
) -> None:
    """The bolt that nobody runs has its series, on which an alert can fire."""
    log = tmp_path / "ui.log"
    command = ["ui", "--topology", running.name, "-b", running.bootstrap, "--port", "0", *METRICS]
    child = ChildProcess("ui", command, tmp_path, log, {"PYTHONUNBUFFERED": "1"})
    child.start()
    try:
        child.wait_ready(lambda: None)
        (url,) = re.findall(r"metrics (http://127\.0\.0\.1:\d+/metrics)", log.read_text())
        labels = f'role="bolt",topology="{running.name}"'
        wanted = f'acktree_topology_processes{{component="upper",{labels}}} 1.0'
        page = until(lambda: wanted in (text := httpx2.get(url).text) and text, "the reports")
        assert f'acktree_topology_processes{{component="audit",{labels}}} 0.0' in page
        assert f'acktree_topology_processes_expected{{component="audit",{labels}}} 1.0' in page
        assert f'acktree_topology_stuck{{kind="no-bolt",topology="{running.name}"}} 1.0' in page
        assert httpx2.get(url.replace("/metrics", "/health")).json() == {"alive": True}
    finally:
        child.stop()


def test_a_dead_letter_is_replayed_once_it_is_confirmed(running: RunningPipeline) -> None:
    before = len(running.json("dead-letter", "list")["dead_letters"])
    planned = running.json("dead-letter", "replay", "--all")
    assert planned["executed"] is False
    (command,) = planned["commands"]
    assert (command["topic"], command["spans"]) == (running.source, [{"from": 40, "to": 41}])
    done = running.acktree("dead-letter", "replay", "0/0", "--execute")
    assert (done.exit_code, "written to " in done.stdout) == (0, True)
    until(
        lambda: len(running.json("dead-letter", "list")["dead_letters"]) == before + 1, "the next dead letter"
    )


def test_the_page_replays_only_after_a_plan_and_from_its_own_form(
    running: RunningPipeline, page: TestClient
) -> None:
    assert page.get("/replay").status_code == 403
    assert page.post("/replay").status_code == 403
    before = len(running.json("dead-letter", "list")["dead_letters"])
    settings = PageSettings(running.bootstrap, running.name, {}, allow_actions=True)
    with TestClient(StatusPage(settings).make_app(), base_url="http://localhost") as client:
        assert "Plan a replay" in client.get("/dead-letters/0/0").text
        assert client.get("/replay", params={"letters": "0/999"}).status_code == 404
        planned = client.get("/replay", params={"letters": "0/0"})
        assert f"replay 1 offset(s) of {running.source}/0: 40" in planned.text
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', planned.text))
        assert client.post("/replay", data={**form, "proof": "forged"}).status_code == 403
        foreign = {"origin": "http://evil.example"}
        assert client.post("/replay", data=form, headers=foreign).status_code == 403
        mine = dict(client.cookies)
        client.cookies.clear()
        assert client.post("/replay", data=form).status_code == 403
        client.cookies.update(mine)
        done = client.post("/replay", data=form)
        assert (done.status_code, "written to" in done.text) == (200, True)
        again = client.post("/replay", data=form)
        assert (again.status_code, "carried out already" in again.text) == (200, True)
    until(
        lambda: len(running.json("dead-letter", "list")["dead_letters"]) == before + 1, "the next dead letter"
    )


def test_once_the_bolt_runs_nothing_is_stuck_and_the_trace_is_done(
    running: RunningPipeline, page: TestClient
) -> None:
    running.children["audit"].start()
    until(lambda: running.acktree("describe").exit_code == 0, "nothing stuck")
    until(lambda: running.json("describe")["totals"]["pending"] == 0, "nothing pending")
    trace = running.json("trace", running.source, "0", "7")
    assert trace["state"] == "done"
    (emission,) = trace["emissions"]
    assert (emission["state"], emission["open_value"]) == ("acked", "0")
    assert {reader["state"] for each in emission["tuples"] for reader in each["readers"]} == {"done"}
    until(lambda: not page.get("/status.json").json()["stuck"], "the page to say so")
    assert running.acktree("pending", "list").exit_code == 0
