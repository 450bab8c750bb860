"""The files that put acktree into containers say what they should; `make check-containers` runs them."""

import re
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from acktree.core.reports.metrics_server import HEALTH
from acktree.core.topology.file import parse_topology
from deployment.pods import assert_command_exists, assert_confined, assert_probed, pods_of

DOCKER = Path(__file__).parents[2] / "docker"
# libyaml's loader: every process of a run reads these.
KUBERNETES = yaml.load((DOCKER / "kubernetes" / "acktree.yaml").read_text(), yaml.CSafeLoader)["items"]
COMPOSE = yaml.load((DOCKER / "compose.yaml").read_text(), yaml.CSafeLoader)
OURS = ("topology", "acker", "worker", "spark", "ui")


@pytest.mark.parametrize(
    "resource", KUBERNETES, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}"
)
def test_every_kubernetes_field_exists(resource: dict[str, Any]):
    kubernetes_validate.validate(resource, "1.31", strict=True)


def test_every_pod_is_confined_and_limited():
    for pod in pods_of(KUBERNETES):
        assert_confined(pod)


def deployed() -> list[dict[str, Any]]:
    """Return the pods that run for good."""
    return pods_of(each for each in KUBERNETES if each["kind"] == "Deployment")


def test_every_process_is_probed():
    for pod in deployed():
        assert_probed(pod)


def test_a_container_that_is_stuck_fails_its_health_check():
    checks = [COMPOSE["x-acktree"]["healthcheck"]["test"][-1], (DOCKER / "Dockerfile").read_text()]
    assert all(f"http://127.0.0.1:9464{HEALTH}'" in check for check in checks)


def test_every_pod_has_the_compiled_code_of_the_image_in_a_writable_folder():
    (kept,) = set(re.findall(r"NUMBA_CACHE_DIR=(\S+)", (DOCKER / "Dockerfile").read_text()))
    settings = named("ConfigMap")["acktree"]["data"]
    for pod in deployed():
        if "ui" in pod["containers"][0]["args"]:
            continue  # it compiles nothing
        (copying,) = pod["initContainers"]
        assert copying["command"] == ["cp", "-R", kept, settings["NUMBA_CACHE_DIR"]]
        assert "tmp" in {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        (process,) = pod["containers"]
        assert copying["image"] == process["image"]
        assert copying["volumeMounts"][0] in process["volumeMounts"]


def commands() -> list[list[str]]:
    in_pods = [container["args"] for pod in pods_of(KUBERNETES) for container in pod["containers"]]
    composed = [COMPOSE["services"][name]["command"] for name in OURS if name != "topology"]
    return [*in_pods, *composed]


@pytest.mark.parametrize("command", commands(), ids=lambda each: " ".join(each[:3]))
def test_every_command_and_option_in_the_files_exists(command: list[str]):
    assert_command_exists(command)


def named(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in KUBERNETES if each["kind"] == kind}


def test_the_spout_has_one_driver():
    driver = named("Deployment")["wordcount-lines"]["spec"]
    assert driver["replicas"] == 1
    assert driver["strategy"] == {"type": "Recreate"}


def test_only_an_autoscaler_sets_the_number_of_replicas():
    """Else each `kubectl apply` would take back what the autoscaler has added."""
    (autoscaler,) = named("HorizontalPodAutoscaler").values()
    scaled = named("Deployment")[autoscaler["spec"]["scaleTargetRef"]["name"]]["spec"]
    assert "replicas" not in scaled
    assert autoscaler["spec"]["minReplicas"] > 1


def test_a_job_publishes_the_topology_of_the_example():
    (job,) = pods_of(named("Job").values())
    (mount,) = [each for each in job["containers"][0]["volumeMounts"] if each["name"] == "topology"]
    (volume,) = [each for each in job["volumes"] if each["name"] == "topology"]
    files = named("ConfigMap")[volume["configMap"]["name"]]["data"]
    assert job["containers"][0]["args"] == ["topology", "apply", f"{mount['mountPath']}/topology.toml"]
    example = DOCKER.parent / "examples" / "wordcount" / "topology.toml"
    assert parse_topology(files["topology.toml"]) == parse_topology(example.read_text())


def test_the_service_leads_to_the_status_page():
    (service,) = named("Service").values()
    page = named("Deployment")["wordcount-ui"]["spec"]["template"]
    assert service["spec"]["selector"] == page["metadata"]["labels"]
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in page["spec"]["containers"][0]["ports"]}


def test_the_pod_monitor_finds_every_pod():
    monitor = yaml.safe_load((DOCKER / "kubernetes" / "prometheus-operator" / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for deployment in named("Deployment").values():
        template = deployment["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        assert endpoint["port"] in ports


def test_compose_persists_every_database_and_kafka():
    """Offsets that outlive the database lose its rows; a database that outlives them loses new ones."""
    mounts = [each for service in COMPOSE["services"].values() for each in service.get("volumes", ())]
    named = {mount.partition(":")[0] for mount in mounts if not mount.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    kafka = COMPOSE["services"]["kafka"]
    assert f"kafka:{kafka['environment']['KAFKA_LOG_DIRS']}" in kafka["volumes"]


def test_kubernetes_persists_the_files_of_a_pod():
    """Ackers and the page keep nothing; what a database on a volume of the pod holds would be gone."""
    claims = {each["metadata"]["name"] for each in KUBERNETES if each["kind"] == "PersistentVolumeClaim"}
    claimed = set()
    for pod in deployed():
        (process,) = pod["containers"]
        if process["args"][0] in ("acker", "ui"):
            continue
        (home,) = [each for each in process["volumeMounts"] if each["mountPath"] == "/var/lib/acktree"]
        (volume,) = [each for each in pod["volumes"] if each["name"] == home["name"]]
        claimed.add(volume["persistentVolumeClaim"]["claimName"])
    assert claimed == claims
    assert len(claims) == 2


def test_ports_are_published_on_loopback_unless_asked_otherwise():
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert len(published) == 4
    for port in published:
        assert port.startswith("${PUBLISH_HOST:-127.0.0.1}:"), port


def test_every_container_of_the_composition_is_limited():
    for name, service in COMPOSE["services"].items():
        assert service["mem_limit"], name
        assert service["cpus"], name


def locked() -> dict[str, list[tuple[Version, Marker | None, int]]]:
    """Return what the image installs: version, for which Pythons, and how many hashes, by package."""
    found = defaultdict(list)
    for entry in re.sub(r" \\\n +", " ", (DOCKER / "requirements.lock").read_text()).splitlines():
        if not entry.startswith("#"):
            text, *hashes = entry.split(" --hash=sha256:")
            requirement = Requirement(text)
            (pin,) = requirement.specifier
            found[canonicalize_name(requirement.name)].append(
                (Version(pin.version), requirement.marker, len(hashes))
            )
    return found


def test_the_image_installs_locked_packages_that_satisfy_the_project():
    """`make lock` writes them anew."""
    program = [
        sys.executable,
        DOCKER / "requirements.py",
        DOCKER.parent / "pyproject.toml",
        "acker",
        "spark",
        "ui",
    ]
    needed = subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()
    lock = locked()
    for requirement in map(Requirement, needed):
        versions = lock[canonicalize_name(requirement.name)]
        assert versions, requirement
        assert all(requirement.specifier.contains(pinned) for pinned, _, _ in versions), requirement
    assert all(hashes for versions in lock.values() for _, _, hashes in versions)


def installed(name: str) -> list[Version]:
    try:
        return [Version(version(name))]
    except PackageNotFoundError:
        return []


def test_dependencies_of_locked_packages_are_locked():
    """Asked of those that are installed here in the version of the lock."""
    lock = {
        name: [locked for locked, marker, _ in versions if marker is None or marker.evaluate()]
        for name, versions in locked().items()
    }
    for name in (name for name, versions in lock.items() if versions == installed(name)):
        for need in map(Requirement, requires(name) or ()):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                (chosen,) = lock[canonicalize_name(need.name)]
                assert need.specifier.contains(chosen), (name, need)


def test_the_image_does_not_run_as_root_and_has_a_health_check():
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE) == ["10001:10001"]
    assert "HEALTHCHECK" in dockerfile


def test_the_image_installs_exactly_the_locked_packages():
    dockerfile = (DOCKER / "Dockerfile").read_text()
    installed = re.findall(r"pip install (.*)", dockerfile)
    assert installed == ["--require-hashes -r /src/requirements.lock", "--no-deps /src"]
