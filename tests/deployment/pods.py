"""What every pod of ours must be, whoever wrote its file."""

import re
from collections.abc import Iterable
from typing import Any

from click.testing import CliRunner

from acktree.console.main import main
from acktree.core.reports.metrics_server import HEALTH

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
WORKLOADS = ("Deployment", "Job")


def pods_of(resources: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pods of the resources that have some."""
    return [each["spec"]["template"]["spec"] for each in resources if each["kind"] in WORKLOADS]


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def assert_confined(pod: dict[str, Any]) -> None:
    """It neither is root nor becomes root, writes to its volumes only, and takes no more than it may."""
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    for container in containers_of(pod):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        for part in ("requests", "limits"):
            assert {"cpu", "memory"} <= container["resources"][part].keys(), container["name"]


def assert_probed(pod: dict[str, Any]) -> None:
    """Each probe asks a port that the process opens, where it answers without a password.

    A process that is stuck has to fail the probe of its liveness, and that alone.
    """
    (container,) = pod["containers"]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    for name, option in {"metrics": "--metrics-port", "http": "--port"}.items():
        assert name not in ports or container["args"][container["args"].index(option) + 1] == ports[name]
    asked, path = ("http", HEALTH) if "http" in ports else ("metrics", "/metrics")
    for probe in PROBES:
        wanted = HEALTH if probe == "livenessProbe" else path
        assert container[probe]["httpGet"] == {"path": wanted, "port": asked}


def assert_command_exists(command: list[str]) -> None:
    """The command exists, and so do its options."""
    options = {part for part in command if part.startswith("--")}
    noun, verb = command[:2]
    result = CliRunner().invoke(main, [noun, *([] if verb.startswith("--") else [verb]), "--help"])
    assert result.exit_code == 0, result.output
    assert options <= set(re.findall(r"--[a-z-]+", result.output))
