"""Dashboards and alerts, ours and etcd's, ask only for metrics and labels that a server exports."""

import json
import re
from pathlib import Path

import pytest
import yaml

from kvorum.network.edge.interface import INCIDENTS
from kvorum.server.telemetry.families import METRICS, OURS
from tests.deploy.pods import CHART
from tests.server.telemetry.mixin import ALERTS, PANELS

FILES = CHART / "files"
METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus adds to every series of a target."""
PARTS = ("_bucket", "_sum", "_count")
METRIC = re.compile(r"\b(?:kvorum|etcd|grpc|process)_[a-z_]+")
SELECTOR = re.compile(r"([a-z_]+)\{([^}]*)\}")
LABEL = re.compile(r"(\w+)\s*(=~|!=|!~|=)\s*\"([^\"]*)\"")
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")


def labels_of(series: str) -> set[str]:
    """Return the labels that a series of a server can have; fail if no server exports it."""
    family = METRICS.get(series)
    if family is not None and family.type != "histogram":
        return set(family.labels)
    name, part = next((series.removesuffix(part), part) for part in PARTS if series.endswith(part))
    assert METRICS[name].type == "histogram", series
    return {*METRICS[name].labels, *({"le"} if part == "_bucket" else ())}


def alerts() -> list[dict[str, str]]:
    (group,) = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    found: list[dict[str, str]] = group["rules"]
    return found


def panels() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((FILES / "dashboard.json").read_text())["panels"]
    return found


def expressions() -> list[str]:
    shown: list[str] = re.findall(r'"expr": "(.*)"', (FILES / "dashboard.json").read_text())
    return [*(each.replace('\\"', '"') for each in shown), *(each["expr"] for each in alerts())]


@pytest.mark.parametrize("title", [*PANELS, *ALERTS])
def test_etcds_dashboards_and_alerts_find_their_metrics(title: str) -> None:
    for series, wanted in {**PANELS, **ALERTS}[title]:
        assert wanted.keys() <= labels_of(series), series


@pytest.mark.parametrize("expression", expressions())
def test_our_dashboard_and_alerts_find_their_metrics(expression: str) -> None:
    series = METRIC.findall(expression)
    assert series
    has = TARGET_LABELS.union(*map(labels_of, series))
    for grouping in GROUPING.findall(expression):
        assert {each.strip() for each in grouping.split(",")} <= has
    for name, selector in SELECTOR.findall(expression):
        for label, _, _ in LABEL.findall(selector):
            assert label in labels_of(name) | TARGET_LABELS


def test_our_alerts_select_values_that_servers_show() -> None:
    page = METRICS_PAGE.read_text()
    for alert in alerts():
        for _, selector in SELECTOR.findall(alert["expr"]):
            for label, _, values in LABEL.findall(selector):
                for value in values.split("|"):
                    shown = value in INCIDENTS if label == "name" else f"| `{value}` |" in page
                    assert shown, f"{alert['alert']}: {label} is never {value}"


def test_every_metric_of_ours_is_in_the_dashboard() -> None:
    text = (FILES / "dashboard.json").read_text()
    assert [name for name in METRICS if name.startswith(OURS) and name not in text] == []


def test_an_alert_says_what_it_means_and_what_to_do() -> None:
    found = alerts()
    assert len({each["alert"] for each in found}) == len(found)
    for alert in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"][0]["rules"]:
        assert alert["labels"]["severity"] in ("warning", "critical")
        summary = alert["annotations"]["summary"]
        assert summary.endswith(".") and len(re.findall(r"[.;] ", summary)) >= 1


def test_a_panel_has_a_place_and_an_explanation() -> None:
    places = {json.dumps(each["gridPos"]) for each in panels()}
    assert len(places) == len({each["id"] for each in panels()}) == len(panels())
    assert all(each["description"] for each in panels())
