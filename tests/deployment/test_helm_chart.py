"""The Helm chart, rendered by Helm's own library: what it makes of values, and which values it refuses."""

import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from acktree.core.topology.file import parse_topology
from deployment.pods import assert_command_exists, assert_confined, assert_probed, pods_of

pytestmark = [
    pytest.mark.skipif(find_spec("helm_python") is None, reason="Helm's library has no wheel here"),
    pytest.mark.xdist_group("helm"),
]
CHART = Path(__file__).parents[2] / "docker" / "helm" / "acktree"
GIVEN = {"kafka": {"bootstrapServers": "kafka:9092"}, "ui": {"token": "a-secret"}}
RESOURCES = {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 1, "memory": "1Gi"}}
SPOUT = {"handler": "jobs:Numbers", "tasks": 2, "resources": RESOURCES}
STAGE = {"handler": "jobs:split", "resources": RESOURCES}
SHARED = {**STAGE, "replicas": 3}
SCALING = {"minReplicas": 2, "maxReplicas": 4, "cpuUtilization": 300}
EVERYTHING = {
    "image": {"repository": "registry/jobs", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": ["registry"],
    "kafka": {"clientProperties": "how-to-get-in"},
    "ackers": {"autoscaling": SCALING},
    "spouts": {"number_source": SPOUT, "texts": STAGE},
    "spark": {"lines": {"env": {"A": 1}, "storage": {"storageClass": "fast"}}},
    "ui": {"allowActions": True},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "alerts": {"enabled": True},
}


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return values of both, where they differ those of the second."""
    both = dict(values)
    for key, value in more.items():
        is_table = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merged(both[key], value) if is_table else value
    return both


def render(**values: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what the chart makes of values, by kind and name."""
    import helm_python  # no earlier: it loads a Go runtime into the process

    with helm_python.Chart.load(CHART) as chart:
        given = merged(GIVEN, values)
        chart.validate_schema(chart.merge_values(given))
        texts = chart.render(given, name="wc", namespace="here")
    made = [
        each for path, text in texts.items() if path.endswith(".yaml") for each in yaml.safe_load_all(text)
    ]
    return {(each["kind"], each["metadata"]["name"]): each for each in made if each}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_every_field_that_the_chart_renders_exists(values: dict[str, Any]):
    for (kind, _), resource in render(**values).items():
        if kind not in ("PodMonitor", "PrometheusRule"):
            kubernetes_validate.validate(resource, "1.31", strict=True)


def test_the_chart_passes_helms_own_linter():
    import helm_python

    assert helm_python.lint(CHART, GIVEN, strict=True)["errors"] == []


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_every_process_is_confined_probed_and_limited_and_its_command_exists(values: dict[str, Any]):
    made = render(**values).values()
    for pod in pods_of(made):
        assert_confined(pod)
        assert_command_exists(pod["containers"][0]["args"])
    for pod in pods_of(each for each in made if each["kind"] == "Deployment"):
        assert_probed(pod)


def test_the_defaults_run_the_published_topology():
    made = render()
    (file,) = [each["data"]["topology.toml"] for (kind, _), each in made.items() if kind == "ConfigMap"]
    topology = parse_topology(file)
    deployed = {name for kind, name in made if kind == "Deployment"}
    assert {f"wc-bolt-{name}" for name in topology.bolts} <= deployed
    assert {f"wc-spark-{name}" for name in topology.spouts} <= deployed
    assert topology.name == "wordcount"


def test_a_changed_topology_or_image_gets_its_own_job():
    def job(**values: Any) -> str:
        (name,) = [name for kind, name in render(**values) if kind == "Job"]
        return name

    assert job() == job()
    assert len({job(), job(topology={"file": "name = 'other'"}), job(image={"tag": "2"})}) == 3
    assert not [kind for kind, _ in render(topology={"file": ""}) if kind == "Job"]


def test_only_an_autoscaler_sets_the_number_of_replicas():
    made = render(ackers={"autoscaling": SCALING})
    assert "replicas" not in made["Deployment", "wc-acker"]["spec"]
    assert made["HorizontalPodAutoscaler", "wc-acker"]["spec"]["minReplicas"] == 2
    assert render(ackers={"replicas": 3})["Deployment", "wc-acker"]["spec"]["replicas"] == 3


def test_a_process_that_may_run_only_once_is_never_run_twice():
    made = render(**EVERYTHING)
    alone = [name for kind, name in made if kind == "Deployment" and re.search("spark|spout", name)]
    assert sorted(alone) == [
        "wc-spark-lines",
        "wc-spout-number-source-0",
        "wc-spout-number-source-1",
        "wc-spout-texts-0",
    ]
    for name in (*alone, "wc-bolt-count"):  # that one has a claim
        assert made["Deployment", name]["spec"]["strategy"] == {"type": "Recreate"}
        assert made["Deployment", name]["spec"]["replicas"] == 1


def test_a_stage_is_given_no_task_and_a_spout_class_each_of_its_tasks():
    def task(name: str) -> list[str]:
        args = made["Deployment", name]["spec"]["template"]["spec"]["containers"][0]["args"]
        return [after for option, after in pairwise(args) if option == "--task"]

    made = render(**EVERYTHING)
    assert task("wc-spout-texts-0") == []
    assert [task(f"wc-spout-number-source-{number}") for number in range(2)] == [["0"], ["1"]]


def test_a_stage_may_have_several_processes():
    made = render(spouts={"texts": SHARED})
    assert made["Deployment", "wc-spout-texts-0"]["spec"]["replicas"] == 3
    assert "strategy" not in made["Deployment", "wc-spout-texts-0"]["spec"]


def test_the_pod_monitor_finds_every_pod():
    made = render(**EVERYTHING)
    monitor = made["PodMonitor", "wc"]["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for (kind, _), each in made.items():
        if kind == "Deployment":
            template = each["spec"]["template"]
            assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
            ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
            assert endpoint["port"] in ports


def test_the_alerts_are_those_that_are_tested():
    rules = render(**EVERYTHING)["PrometheusRule", "wc"]["spec"]
    tested = CHART.parents[1] / "prometheus" / "alerts.yaml"
    assert rules == yaml.safe_load(tested.read_text())


def test_a_claim_outlives_the_release():
    claims = [each for (kind, _), each in render().items() if kind == "PersistentVolumeClaim"]
    assert len(claims) == 2
    for claim in claims:
        assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"kafka": {"bootstrapServers": ""}}, "kafka.bootstrapServers is needed"),
        ({"ui": {"token": ""}}, "ui.token is needed"),
        ({"akers": {}}, "akers"),
        ({"bolts": {"count": {"handler": "no place"}}}, "handler"),
        ({"bolts": {"count": {"replicas": 2}}}, "a claim is for one process"),
        ({"spouts": {"s": {**SHARED, "storage": {"size": "1Gi"}}}}, "a claim is for one process"),
        ({"spouts": {"s": {**SHARED, "tasks": 3}}}, "leave one out"),
        ({"image": {"digest": "sha256:12"}}, "digest"),
        ({"ackers": {"resources": {"limits": None}}}, "limits"),
        ({"ackers": {"autoscaling": {"minReplicas": 2}}}, "maxReplicas"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bad_values_are_refused(values: dict[str, Any], complaint: str):
    with pytest.raises(Exception, match=complaint) as raised:
        render(**values)
    assert type(raised.value).__name__ in ("HelmValuesError", "HelmRenderError")
