"""Alert rules and the dashboard: every metric exists, every expression parses, every rule fires in time."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml

import prerequisites
from public_names import alert_rules, documented_metrics

HOUSE = Path(__file__).parents[2]
PROMETHEUS = HOUSE / "docker" / "prometheus"
DASHBOARD = HOUSE / "docker" / "grafana" / "dashboards" / "acktree.json"
METRIC = re.compile(r"\backtree_[a-z_]+\b")


def dashboard_expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_every_queried_metric_is_documented():
    known = documented_metrics()
    for expression in (*(rule["expr"] for rule in alert_rules()), *dashboard_expressions()):
        asked = set(METRIC.findall(expression))
        assert asked, expression
        assert asked <= known, expression


def test_every_alert_says_what_to_do():
    assert alert_rules()
    for rule in alert_rules():
        assert rule["annotations"]["summary"], rule
        assert rule["annotations"]["action"], rule
        assert rule["labels"]["severity"] in ("page", "warn"), rule


def test_every_alert_has_a_test_in_which_it_fires():
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert fired == {rule["alert"] for rule in alert_rules()}


def test_no_two_panels_of_the_dashboard_overlap():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (panel["gridPos"]["x"] + right, panel["gridPos"]["y"] + down)
        for panel in panels
        for right in range(panel["gridPos"]["w"])
        for down in range(panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def promtool(*arguments: str | Path) -> None:
    """Run promtool, which has to find nothing wrong."""
    done = subprocess.run([prerequisites.program("promtool"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_fire_when_they_should_according_to_promtool():
    promtool("test", "rules", PROMETHEUS / "alerts_test.yaml")


def test_promtool_accepts_the_configuration():
    promtool("check", "config", PROMETHEUS / "prometheus.yaml")


def test_promtool_parses_the_dashboards_expressions(tmp_path: Path):
    expressions = [re.sub(r'=~"\$topology"', '=~".*"', expression) for expression in dashboard_expressions()]
    recorded = [{"record": f"panel_{number}", "expr": each} for number, each in enumerate(expressions)]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", file)
