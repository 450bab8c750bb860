"""Puts a bill of materials into the wheel: acktree itself, and what it requires, with and without extras.

Format: CycloneDX 1.6, in ``.dist-info/sboms/`` (PEP 770). The wheel holds no code of others; which versions
are installed is up to the installer, so that requirements are ranges. ``docker/requirements.lock`` pins them.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


class BillOfMaterials(BuildHookInterface):
    """Writes the bill before a wheel is built, and removes it after."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        core = self.metadata.core
        bill = Path(self._folder.name) / f"{core.name}.cdx.json"
        about = bill_of(core.name, self.metadata.version, core.dependencies, core.optional_dependencies)
        bill.write_text(json.dumps(about, indent=1), encoding="utf-8")
        build_data["sbom_files"].append(str(bill))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def bill_of(name: str, version: str, required: list[str], extras: dict[str, list[str]]) -> dict[str, Any]:
    """Return the bill of a package with these requirements, as CycloneDX has it."""
    own = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    wanted: dict[str, list[tuple[str, str]]] = {}
    for extra, texts in {"": required, **extras}.items():
        for requirement in map(Requirement, texts):
            if (other := canonicalize_name(requirement.name)) != name:
                wanted.setdefault(other, []).append((extra, str(requirement)))
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{other}",
            "name": other,
            "purl": f"pkg:pypi/{other}",
            "scope": "required" if "" in dict(uses) else "optional",
            "properties": [
                {"name": f"acktree:requirement:{extra}" if extra else "acktree:requirement", "value": text}
                for extra, text in uses
            ],
        }
        for other, uses in sorted(wanted.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [c["bom-ref"] for c in components]}],
    }
