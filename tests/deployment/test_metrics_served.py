"""Every kind of process serves its figures, they move, and a real Prometheus answers the dashboard."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

import prerequisites
from acktree.console.demo.children import ChildProcess
from acktree.console.devbroker import ports
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from deadlines import ANSWER_S, stretched
from deployment.test_monitoring import PROMETHEUS, dashboard_expressions
from public_names import alert_rules

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("metrics"),
]
DEADLINE_S = stretched(300)
TOPOLOGY = """
name = "{name}"
[spouts.lines]
topics = ["{name}.source"]
emits = ["{name}.words"]
[spouts.numbers]
emits = ["{name}.words"]
[bolts.upper]
reads = ["{name}.words"]
emits = ["{name}.loud"]
[bolts.store]
reads = ["{name}.loud"]
emits = ["{name}.kept"]
"""
JOBS = """
import time
from acktree.producers import BasicBolt, Spout

def words(rows):
    return rows.select("value", "anchors")

def store(rows):
    return rows.select("value", "anchors")

class Upper(BasicBolt):
    name = "upper"
    def execute(self, tup, emit):
        emit(tup.value.upper())

class Numbers(Spout):
    name = "numbers"
    due_s = 0
    def next_tuple(self, emitter):
        if time.monotonic() > self.due_s:
            self.due_s = time.monotonic() + 0.1
            emitter.emit(b"number", message_id=self.due_s)
"""
SPARK = ("--trigger", "500ms")
PROCESSES = {
    "acker": ("acker", "run"),
    "numbers": ("spout", "run", "jobs:Numbers"),
    "upper": ("bolt", "run", "jobs:Upper"),
    "lines": ("spark", "run", "jobs:words", "--spout", "lines", *SPARK),
    "store": ("spark", "run", "jobs:store", "--bolt", "store", *SPARK),
}
MOVING = {
    "acker": {"acktree_acker_folded_total", "acktree_acker_acked_total"},
    "numbers": {"acktree_spout_emitted_total", "acktree_spout_completed_total"},
    "upper": {"acktree_bolt_executed_total", "acktree_bolt_acked_total", "acktree_bolt_emitted_total"},
    "lines": {"acktree_spout_emitted_total", "acktree_spout_completed_total", "acktree_spout_next_offset"},
    "store": {"acktree_bolt_executed_total", "acktree_bolt_acked_total"},
}

Figures = dict[str, float]


class Pipeline:
    """The running processes and the source that feeds them."""

    def __init__(self, children: dict[str, ChildProcess], producer: Producer, topic: str) -> None:
        self.children = children
        self._producer, self._topic = producer, topic

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Feed the source until something holds, and return that."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not (found := holds()):
            for child in self.children.values():
                child.check_alive()
            assert time.monotonic() < deadline_s, f"waited {DEADLINE_S} s for {what}"
            self._producer.produce(self._topic, b"line")
            self._producer.poll(0.2)
        return found

    def address(self, name: str) -> str:
        """Return where a process says that it serves its metrics."""
        said = re.compile(r"^metrics (http://127\.0\.0\.1:\d+/metrics)$", re.MULTILINE)
        log = self.children[name].log
        return str(self.until(lambda: said.search(log.read_text()), f"the address of {name}")[1])


@pytest.fixture(scope="module")
def name(bootstrap: str) -> str:
    """The name of the published topology."""
    name = f"t{time.time_ns():x}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(f"{name}.source", 1)])[f"{name}.source"].result()
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
    return name


@pytest.fixture(scope="module")
def pipeline(bootstrap: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "jobs.py").write_text(JOBS)
    with ExitStack() as stack:
        children = {}
        for process, command in PROCESSES.items():
            arguments = [*command, "--topology", name, "-b", bootstrap, "--metrics-port", "0"]
            child = ChildProcess(
                process, arguments, folder, folder / f"{process}.log", {"PYTHONUNBUFFERED": "1"}
            )
            children[process] = child
            stack.callback(child.stop)
            child.start()
        yield Pipeline(children, Producer({"bootstrap.servers": bootstrap}), f"{name}.source")


def scrape(address: str) -> Figures:
    """Return the sum of each metric over its labels."""
    text = urllib.request.urlopen(address, timeout=ANSWER_S).read().decode()
    figures: Figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
    return figures


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_serves_metrics_that_change(pipeline: Pipeline, process: str):
    address = pipeline.address(process)
    before = pipeline.until(lambda: scrape(address).keys() >= MOVING[process] and scrape(address), "figures")

    def has_moved() -> bool:
        now = scrape(address)
        return all(now[figure] > before[figure] for figure in MOVING[process])

    pipeline.until(has_moved, f"the figures of {process} to move from {before}")


@pytest.fixture
def prometheus(pipeline: Pipeline, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes all processes and evaluates the project's rules."""
    program = prerequisites.program("prometheus")
    (port,) = ports.free_ports(1)
    targets = [pipeline.address(process).split("/")[2] for process in PROCESSES]
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(PROMETHEUS / "alerts.yaml")],
        "scrape_configs": [{"job_name": "acktree", "static_configs": [{"targets": targets}]}],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    command = [program, f"--config.file={tmp_path / 'prometheus.yaml'}", f"--storage.tsdb.path={tmp_path}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    yield f"http://127.0.0.1:{port}/api/v1"
    process.terminate()
    process.wait(ANSWER_S)


def ask(address: str, **parameters: str) -> Any:
    """Return the data of an answer of Prometheus, None while it does not answer."""
    try:
        text = urllib.request.urlopen(
            f"{address}?{urllib.parse.urlencode(parameters)}", timeout=ANSWER_S
        ).read()
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            return None  # it starts
        raise AssertionError(error.read().decode()) from error
    except OSError:
        return None
    return json.loads(text)["data"]


def test_a_real_prometheus_answers_every_panel_of_the_dashboard(
    pipeline: Pipeline, prometheus: str, name: str
):
    def is_up() -> bool:
        targets = (ask(f"{prometheus}/targets") or {}).get("activeTargets", ())
        return len(targets) == len(PROCESSES) and all(each["health"] == "up" for each in targets)

    pipeline.until(is_up, "all targets")
    unanswered = {each.replace("$topology", name) for each in dashboard_expressions()}
    assert len(unanswered) > 20

    def is_answered() -> bool:
        for expression in list(unanswered):
            result = ask(f"{prometheus}/query", query=expression)["result"]
            if result and all(each["value"][1] != "NaN" for each in result):
                unanswered.discard(expression)
        return not unanswered

    pipeline.until(is_answered, "answers")
    (group,) = ask(f"{prometheus}/rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == dict.fromkeys(
        (rule["alert"] for rule in alert_rules()), "ok"
    )
    assert not [alert for rule in group["rules"] for alert in rule["alerts"] if alert["state"] == "firing"]
