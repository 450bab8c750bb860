"""Collects the names that users of acktree see: in programs, files, commands, logs, alerts and metrics."""

import importlib
import inspect
import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from acktree.console.view.stuck import KINDS
from acktree.core.topology.file import (
    BoltTable,
    EmittedTopic,
    SparkTable,
    SpoutSparkTable,
    SpoutTable,
    Topology,
)

HOUSE = Path(__file__).parents[1]
DOCS = HOUSE / "docs"
CODE = ("schemas", "producers", "acker_consumer", "spark_app", "console")
TABLES = (Topology, SpoutTable, BoltTable, SpoutSparkTable, SparkTable, EmittedTopic)


def code() -> str:
    """Return the text of all modules of the product."""
    return "".join(path.read_text("utf-8") for part in CODE for path in sorted((HOUSE / part).rglob("*.py")))


def loggers() -> set[str]:
    """Return the loggers that the code gets."""
    return set(re.findall(r'getLogger\("(acktree[^"]*)"\)', code()))


def actions() -> set[str]:
    """Return the actions of log records."""
    return set(re.findall(r'(?:"action": "|action="|"action=)([a-z_]+)', code()))


def documented_actions() -> set[str]:
    """Return the actions of the table of docs/logging.md, which has those that the code computes as well."""
    table = (DOCS / "logging.md").read_text("utf-8").split("| action |")[1]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {action for cell in cells for action in re.findall(r"`(\w+)`", cell)}


def environment() -> set[str]:
    """Return the environment variables that the code names."""
    return set(re.findall(r"\bACKTREE_[A-Z_]+\b", code()))


def documented_metrics() -> set[str]:
    """Return the metrics of which the docs show a sample; tests compare the samples with what is served."""
    return {name for name, _ in _samples()}


def labels() -> set[str]:
    """Return the labels of the metrics, and the kinds of what is stuck."""
    return {label for _, labels in _samples() for label in re.findall(r'(\w+)="', labels)} | set(KINDS)


def _samples() -> Iterator[tuple[str, str]]:
    for page in ("metrics.md", "acker.md"):
        for line in (DOCS / page).read_text("utf-8").splitlines():
            if line.startswith("acktree_"):
                name, _, rest = line.rpartition(" ")[0].partition("{")
                yield name, rest


def alert_rules() -> list[dict[str, Any]]:
    """Return the alert rules for Prometheus."""
    (group,) = yaml.safe_load((HOUSE / "docker" / "prometheus" / "alerts.yaml").read_text("utf-8"))["groups"]
    return list(group["rules"])


def alerts() -> set[str]:
    """Return the names of the alerts."""
    return {rule["alert"] for rule in alert_rules()}


def topology_keys() -> set[str]:
    """Return the keys of a topology file."""
    return {field.alias or name for table in TABLES for name, field in table.model_fields.items()}


def source_options() -> set[str]:
    """Return the options of Spark's source and sink; a stage in Python knows some of them."""
    from acktree.spark.shared.options import KNOWN

    return set(KNOWN)


def commands() -> set[str]:
    """Return the commands with their arguments, options and the choices of these."""
    made = runpy.run_path(str(DOCS / "commands.py"))
    found = set[str]()
    for context in made["commands"](click.Context(made["main"], info_name="acktree"), made["main"]):
        found |= set(context.command_path.split())
        for parameter in context.command.params:
            found |= {*parameter.opts, *parameter.secondary_opts, *getattr(parameter.type, "choices", ())}
    return found


def json_fields() -> set[str]:
    """Return the fields of the documents that commands and the status page write."""
    text = (DOCS / "operate.md").read_text("utf-8").split("\n## JSON\n")[1].split("\n## ")[0]
    return set(re.findall(r"`([a-z][a-z_]*)`", text))


def errors() -> set[str]:
    """Return the names of all errors."""
    return {error.__name__ for error in runpy.run_path(str(DOCS / "errors.py"))["every_error"]()}


def api() -> set[str]:
    """Return the names of docs/api.md, their public members, and the parameters of all of these."""
    made = runpy.run_path(str(DOCS / "api.py"))
    found = set[str]()
    for module in map(importlib.import_module, made["PUBLIC"]):
        for name in made["names"](module.__name__, module):
            value = getattr(module, name)
            found |= {name} | (_members(value) if inspect.isclass(value) else _parameters(value))
    return found


def _members(public: type) -> set[str]:
    found = _parameters(public)
    for owner in public.__mro__:
        if owner.__module__.startswith("acktree."):
            for name in {**vars(owner), **inspect.get_annotations(owner)}:
                if not name.startswith("_"):
                    found |= {name} | _parameters(getattr(owner, name, None))
    return found


def _parameters(value: object) -> set[str]:
    """Return the parameters by which a function or class is called; none of another value."""
    if not callable(value):
        return set()
    try:
        parameters: Mapping[str, object] = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return set()
    return {name for name in parameters if not name.startswith("_")}
