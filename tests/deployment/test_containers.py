"""The files that put acktree into containers say what they should; `make check-containers` runs them."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from acktree.console.main import main

DOCKER = Path(__file__).parents[2] / "docker"
KUBERNETES = yaml.safe_load((DOCKER / "kubernetes" / "acktree.yaml").read_text())["items"]
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
OURS = ("topology", "acker", "worker", "spark", "ui")


@pytest.mark.parametrize(
    "resource", KUBERNETES, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}"
)
def test_every_kubernetes_field_exists(resource: dict[str, Any]):
    kubernetes_validate.validate(resource, "1.31", strict=True)


def pods() -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in KUBERNETES if each["kind"] == "Deployment"]


def test_no_pod_runs_as_root_or_may_become_root():
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        for container in [*pod["initContainers"], *pod["containers"]]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"]
        assert all(container["livenessProbe"] for container in pod["containers"])


def test_every_pod_has_the_compiled_code_of_the_image_in_a_writable_folder():
    (kept,) = set(re.findall(r"NUMBA_CACHE_DIR=(\S+)", (DOCKER / "Dockerfile").read_text()))
    (settings,) = [each["data"] for each in KUBERNETES if each["kind"] == "ConfigMap"]
    for pod in pods():
        (copying,) = pod["initContainers"]
        assert copying["command"] == ["cp", "-R", kept, settings["NUMBA_CACHE_DIR"]]
        assert "tmp" in {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        (process,) = pod["containers"]
        assert copying["image"] == process["image"]
        assert copying["volumeMounts"][0] in process["volumeMounts"]


def commands() -> list[list[str]]:
    in_pods = [container["args"] for pod in pods() for container in pod["containers"]]
    composed = [COMPOSE["services"][name]["command"] for name in OURS if name != "topology"]
    return [*in_pods, *composed]


@pytest.mark.parametrize("command", commands(), ids=lambda each: " ".join(each[:3]))
def test_every_command_and_option_in_the_files_exists(command: list[str]):
    options = {part for part in command if part.startswith("--")}
    verbs = command[: next(at for at, part in enumerate(command) if part.startswith("--") or ":" in part)]
    result = CliRunner().invoke(main, [*verbs, "--help"])
    assert result.exit_code == 0, result.output
    assert options <= set(re.findall(r"--[a-z-]+", result.output))


def test_the_spout_has_one_driver_and_ackers_scale():
    by_name = {each["metadata"]["name"]: each["spec"] for each in KUBERNETES if each["kind"] == "Deployment"}
    assert by_name["wordcount-lines"]["replicas"] == 1
    assert by_name["wordcount-lines"]["strategy"] == {"type": "Recreate"}
    assert by_name["wordcount-acker"]["replicas"] > 1


def test_compose_persists_every_database_and_kafka():
    """Offsets that outlive the database lose its rows; a database that outlives them loses new ones."""
    mounts = [each for service in COMPOSE["services"].values() for each in service.get("volumes", ())]
    named = {mount.partition(":")[0] for mount in mounts if not mount.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    kafka = COMPOSE["services"]["kafka"]
    assert f"kafka:{kafka['environment']['KAFKA_LOG_DIRS']}" in kafka["volumes"]


def test_kubernetes_persists_the_files_of_a_pod():
    """Ackers keep nothing; a database or a checkpoint on a volume of the pod's would be gone with the pod."""
    claims = {each["metadata"]["name"] for each in KUBERNETES if each["kind"] == "PersistentVolumeClaim"}
    claimed = set()
    for pod in pods():
        (process,) = pod["containers"]
        if process["args"][0] == "acker":
            continue
        (home,) = [each for each in process["volumeMounts"] if each["mountPath"] == "/var/lib/acktree"]
        (volume,) = [each for each in pod["volumes"] if each["name"] == home["name"]]
        claimed.add(volume["persistentVolumeClaim"]["claimName"])
    assert claimed == claims
    assert len(claims) == 2


def test_pages_are_published_on_loopback_only():
    for name in ("ui", "prometheus", "grafana"):
        for port in COMPOSE["services"][name]["ports"]:
            assert port.startswith("127.0.0.1:")


def test_the_image_does_not_run_as_root_and_has_a_health_check():
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE) == ["10001:10001"]
    assert "HEALTHCHECK" in dockerfile
